"""Tensor dumps of a good and a bad run: read, paired, measured, judged. Nothing a dump contains is ever executed.

    files/     one file format each: bytes -> descriptions of tensors, no content
    layouts/   one dump folder layout each: whose tensor a file is (name, rank, step, layer, order)
    dump.py    what both speak of, and how a folder is opened
"""
