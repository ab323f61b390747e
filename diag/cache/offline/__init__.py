"""Caches on disk, read without a server: RDB files of Redis and Valkey, append-only files, the folder of Redis 7."""
