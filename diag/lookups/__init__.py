"""Prefix cache lookups, looked at afterwards: what a search should have answered, and what no sound cache would do.

    replay.py        linear walk and binary search over the same blocks, and the holes that a binary search cannot see
    invariants.py    what recorded events and lookups may not contradict
    vllm_hashes.py   vLLM's block hashes from token ids
"""
