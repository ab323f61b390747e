"""Reads the keys and values of live servers: pace, passes, a second process, what stopped scans leave."""
