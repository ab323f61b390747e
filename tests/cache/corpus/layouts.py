"""How caches write values: each layout packs with the library that services use, and reads back to prove a damaged value unreadable."""

from __future__ import annotations

import io
import json
import pickle
import sys
import types
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import django.conf
import msgpack_numpy
import numpy as np
import safetensors.numpy
import torch
from aiocache.serializers import JsonSerializer, MsgPackSerializer
from cachelib.serializers import RedisSerializer

django.conf.settings.configure()

import evil  # noqa: E402
import words  # noqa: E402
from dice import Dice  # noqa: E402
from django_redis.compressors.gzip import GzipCompressor  # noqa: E402  django wants its settings before the import
from django_redis.compressors.identity import IdentityCompressor  # noqa: E402
from django_redis.compressors.lz4 import Lz4Compressor  # noqa: E402
from django_redis.compressors.lzma import LzmaCompressor  # noqa: E402
from django_redis.compressors.zlib import ZlibCompressor  # noqa: E402
from django_redis.compressors.zstd import ZStdCompressor  # noqa: E402
from django_redis.serializers.pickle import PickleSerializer  # noqa: E402

msgpack_numpy.patch()  # what services do so that aiocache's msgpack takes arrays

COMPRESSORS = {"none": IdentityCompressor, "zlib": ZlibCompressor, "zstd": ZStdCompressor, "lz4": Lz4Compressor, "gzip": GzipCompressor, "lzma": LzmaCompressor}


@dataclass
class CacheItem:
    """The wrapper of the services whose values carry a checksum: crc32 is zlib.crc32(data), data is a pickle of the tensor."""

    version: str
    data: bytes
    checksum: int
    created_at: float


def _give_own_module(cls: type, module: str) -> None:
    # A service's class lives in the service's package, which no scanner can import; pickle checks that the name leads to the class.
    for depth in range(1, module.count(".") + 2):
        name = ".".join(module.split(".")[:depth])
        sys.modules.setdefault(name, types.ModuleType(name))
    setattr(sys.modules[module], cls.__name__, cls)
    cls.__module__ = module


_give_own_module(CacheItem, "vision_service.cache.items")


class _SafeUnpickler(pickle._Unpickler):  # type: ignore[name-defined]
    """Reads what this corpus wrote, and nothing that could run: damaged bytes may name anything.

    The unpickler in Python, not the one in C: a flipped byte can make the latter allocate gigabytes for its memo.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return lambda data: torch.load(io.BytesIO(data), weights_only=True)
        known = {("_codecs", "encode"), ("collections", "OrderedDict"), ("vision_service.cache.items", "CacheItem"), ("torch._utils", "_rebuild_tensor_v2")}
        if (module, name) in known or (module.startswith("numpy") and name in ("_reconstruct", "ndarray", "dtype", "_frombuffer", "scalar")):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"not a name this corpus writes: {module}.{name}")


def unpickle(data: bytes) -> Any:
    """The object in a pickle of this corpus; raises for anything else."""
    return _SafeUnpickler(io.BytesIO(data)).load()


@dataclass(frozen=True)
class Layout:
    """One way to store a value. dumps takes an array (and wraps it as the service does) or any other object the format can hold."""

    name: str
    dumps: Callable[[Any, Dice], bytes]
    loads: Callable[[bytes], Any]
    null: Callable[[Dice], bytes] | None = None
    placeholder: Callable[[Dice], bytes] | None = None
    error: Callable[[Dice], bytes] | None = None
    foreign: Callable[[Dice], bytes] | None = None
    bad_checksum: Callable[[Any, Dice], bytes] | None = None
    hollow: Callable[[Dice], bytes] | None = None  # well-formed, but of no elements
    typed: bool = True  # the format says which dtype its numbers have


def _marker_object(dice: Dice) -> Any:
    marker = dice.pick(words.MARKERS)
    padded = (marker * 4).encode()[: (len(marker) * 4) // 4 * 4]
    return dice.pick((
        marker,
        {"status": "skipped", "reason": marker},
        {"embedding": np.zeros(1, np.float32), "marker": marker},
        np.frombuffer(padded, np.float32).copy(),  # passes a check of type, rank and dtype
        np.array([marker], dtype=object),
        {"type": marker, "data": None},
    ))


def _error_object(dice: Dice) -> Any:
    message = dice.pick(words.MESSAGES)
    return dice.pick((words.error_body(dice), words.error_text(dice), RuntimeError(message), {"ok": False, "error": message, "embedding": None}))


def _pickled(name: str, dumps: Callable[[Any, Dice], bytes], loads: Callable[[bytes], Any], **more: Any) -> Layout:
    """A layout that can hold any object, so all the faults that need one."""
    faults: dict[str, Any] = {
        "null": lambda dice: dumps(None, dice),
        "placeholder": lambda dice: dumps(_marker_object(dice), dice),
        "error": lambda dice: dumps(_error_object(dice), dice),
        "foreign": lambda dice: dumps(evil.hidden(dice), dice),
        "hollow": lambda dice: dumps(np.zeros((0,), np.float32), dice),
    }
    return Layout(name, dumps, loads, **{**faults, **more})


def numpy_pickle() -> Layout:
    """pickle.dumps(array), protocols 2 to 5 as the writers' versions differ."""
    return _pickled("pickle of ndarray", lambda obj, dice: pickle.dumps(obj, protocol=dice.pick((2, 3, 4, 4, 5, 5))), unpickle,
                    foreign=lambda dice: evil.raw(dice) if dice.chance(0.5) else pickle.dumps(evil.hidden(dice)))


def _tensor(obj: Any) -> Any:
    return torch.from_numpy(obj) if isinstance(obj, np.ndarray) and obj.dtype != object else obj


def torch_pickle() -> Layout:
    """pickle.dumps(tensor): a pickle that holds torch's legacy file as bytes."""
    return _pickled("pickle of torch tensor", lambda obj, dice: pickle.dumps(_tensor(obj)), unpickle)


def torch_zip() -> Layout:
    """torch.save: a zip with data.pkl and the storages."""

    def dumps(obj: Any, dice: Dice) -> bytes:
        out = io.BytesIO()
        torch.save({"hidden": _tensor(obj), "layer": 24} if isinstance(obj, np.ndarray) and obj.dtype != object else obj, out)
        return out.getvalue()

    return _pickled("torch.save zip", dumps, lambda data: torch.load(io.BytesIO(data), weights_only=True))


def cache_item(version: str) -> Layout:
    """pickle(CacheItem(version, data=pickle(tensor), checksum=zlib.crc32(data), created_at))."""

    def wrap(data: bytes, checksum: int, dice: Dice) -> bytes:
        return pickle.dumps(CacheItem(version, data, checksum, dice.created_s()), protocol=4)

    def dumps(obj: Any, dice: Dice) -> bytes:
        data = pickle.dumps(_tensor(obj))
        return wrap(data, zlib.crc32(data), dice)

    def bad_checksum(obj: Any, dice: Dice) -> bytes:
        data = pickle.dumps(_tensor(obj))
        kind = dice.rnd.randrange(3)
        if kind == 0:  # a bit of one number fell over after the checksum was taken: the value still decodes
            return wrap(_flip_mantissa(data, obj, dice), zlib.crc32(data), dice)
        if kind == 1:  # the checksum of another item
            return wrap(data, zlib.crc32(dice.rnd.randbytes(64)), dice)
        return wrap(data, zlib.adler32(data), dice)  # a writer with the wrong function

    return _pickled("CacheItem with CRC32", dumps, unpickle, bad_checksum=bad_checksum)


def _flip_mantissa(data: bytes, arr: np.ndarray, dice: Dice) -> bytes:
    raw = arr.tobytes()
    at = data.index(raw) + dice.rnd.randrange(arr.size) * arr.itemsize
    changed = bytearray(data)
    changed[at] ^= 1 << dice.rnd.randrange(8)
    return bytes(changed)


def checked_dict() -> Layout:
    """pickle of {"version", "created_at", "dtype", "shape", "data": array.tobytes(), "crc32": zlib.crc32(data)}."""

    def pack(obj: Any, dice: Dice, crc_of: Callable[[bytes], int]) -> bytes:
        if not isinstance(obj, np.ndarray) or obj.dtype == object:
            return pickle.dumps(obj, protocol=4)
        data = obj.tobytes()
        return pickle.dumps({"version": "2024.2", "created_at": dice.created_s(), "dtype": str(obj.dtype), "shape": obj.shape, "data": data,
                             "crc32": crc_of(data)}, protocol=4)

    return _pickled("dict with CRC32", lambda obj, dice: pack(obj, dice, zlib.crc32), unpickle,
                    bad_checksum=lambda obj, dice: pack(obj, dice, lambda data: zlib.crc32(data[:-4]) if dice.chance(0.5) else zlib.crc32(data) ^ 0x00010000))


def plain_dict() -> Layout:
    """pickle of {"embedding": array, "model", "created_at"}, no checksum."""

    def dumps(obj: Any, dice: Dice) -> bytes:
        wrapped = {"embedding": obj, "model": "bge-m3", "created_at": dice.created_s()} if isinstance(obj, np.ndarray) and obj.dtype != object else obj
        return pickle.dumps(wrapped, protocol=dice.pick((4, 5)))

    return _pickled("dict with ndarray", dumps, unpickle, null=lambda dice: pickle.dumps(None, protocol=4))


def np_save() -> Layout:
    """np.save into bytes."""

    def dumps(obj: Any, dice: Dice) -> bytes:
        out = io.BytesIO()
        np.save(out, obj, allow_pickle=True)
        return out.getvalue()

    return Layout("np.save", dumps, lambda data: np.load(io.BytesIO(data), allow_pickle=False),
                  placeholder=lambda dice: dumps(np.array(dice.pick(words.MARKERS)) if dice.chance(0.5) else np.array([dice.pick(words.MARKERS).encode()]), dice),
                  error=lambda dice: dumps(np.array(words.error_text(dice)), dice), null=lambda dice: dice.pick((b"None", b"null")),
                  foreign=lambda dice: dumps(np.array([evil.Call(dice)], dtype=object), dice), hollow=lambda dice: dumps(np.zeros((0, 96), np.float32), dice))


def safe_tensors() -> Layout:
    """safetensors.numpy.save of one tensor called embedding."""

    def dumps(obj: Any, dice: Dice) -> bytes:
        return safetensors.numpy.save({"embedding": obj}, metadata={"model": "siglip-so400m", "format": "np"})

    def placeholder(dice: Dice) -> bytes:
        marker = dice.pick(words.MARKERS)
        return safetensors.numpy.save({"embedding": np.zeros(1, np.float16)}, metadata={"model": "siglip-so400m", "status": marker})

    return Layout("safetensors", dumps, safetensors.numpy.load, placeholder=placeholder, null=lambda dice: dice.pick((b"None", b"null")),
                  error=lambda dice: words.error_text(dice).encode(), hollow=lambda dice: safetensors.numpy.save({"embedding": np.zeros((0,), np.float16)}))


def django(compressor: str, wrap_key: str | None = None) -> Layout:
    """What django-redis stores: its PickleSerializer, then one of its compressors over the whole value."""
    serializer, squeeze = PickleSerializer({}), COMPRESSORS[compressor]({})

    def dumps(obj: Any, dice: Dice) -> bytes:
        wrapped = {wrap_key: obj, "model": "clip-text-v2"} if wrap_key and isinstance(obj, np.ndarray) and obj.dtype != object else obj
        return squeeze.compress(serializer.dumps(wrapped))

    return _pickled(f"django-redis pickle, {compressor}", dumps, lambda data: unpickle(squeeze.decompress(data)))


def cachelib_pickle() -> Layout:
    """cachelib and Flask-Caching: b"!" and a pickle."""
    serializer = RedisSerializer()

    def loads(data: bytes) -> Any:
        if data[:1] != b"!":
            raise ValueError("no cachelib mark")
        return unpickle(data[1:])

    return _pickled("cachelib pickle", lambda obj, dice: serializer.dumps(obj), loads,
                    error=lambda dice: serializer.dumps(dice.pick(((words.error_text(dice), 500), words.error_body(dice), RuntimeError(dice.pick(words.MESSAGES))))),
                    hollow=lambda dice: serializer.dumps({}))


def aio_json() -> Layout:
    """aiocache's JsonSerializer."""
    serializer = JsonSerializer()
    return Layout("aiocache JSON", lambda obj, dice: serializer.dumps(obj).encode(), lambda data: serializer.loads(data.decode()), null=lambda dice: b"null",
                  placeholder=lambda dice: serializer.dumps(dice.pick(({"caption": dice.pick(words.MARKERS)}, dice.pick(words.MARKERS), {"status": "skip", "marker": dice.pick(words.MARKERS)}))).encode(),
                  error=lambda dice: serializer.dumps(words.error_body(dice) if dice.chance(0.7) else {"caption": None, "model": None, "error": dice.pick(words.MESSAGES)}).encode(),
                  hollow=lambda dice: serializer.dumps({}).encode(), typed=False)


def aio_msgpack() -> Layout:
    """aiocache's MsgPackSerializer with msgpack-numpy patched in: {"v": array, "model", "t"}."""
    serializer = MsgPackSerializer()

    def dumps(obj: Any, dice: Dice) -> bytes:
        return serializer.dumps({"v": obj, "model": "e5-small", "t": dice.created_s()} if isinstance(obj, np.ndarray) else obj)

    def placeholder(dice: Dice) -> bytes:
        marker = dice.pick(words.MARKERS)
        return serializer.dumps(dice.pick((marker, {"v": marker, "model": "e5-small"}, {"v": None, "skip": marker})))

    def loads(data: bytes) -> Any:
        if b"kind\xc4\x01O" in data:  # msgpack-numpy would unpickle it
            raise ValueError("an array of objects")
        return serializer.loads(data)

    return Layout("aiocache msgpack", dumps, loads, null=lambda dice: serializer.dumps(None), placeholder=placeholder,
                  error=lambda dice: serializer.dumps(words.error_body(dice)), hollow=lambda dice: dumps(np.zeros((0,), np.float32), dice),
                  foreign=lambda dice: dumps(np.array([evil.Call(dice)], dtype=object), dice))


def token_list() -> Layout:
    """aiocache msgpack of a list of token ids."""
    serializer = MsgPackSerializer()
    return Layout("msgpack list", lambda obj, dice: serializer.dumps(obj), serializer.loads, null=lambda dice: serializer.dumps(None),
                  placeholder=lambda dice: serializer.dumps([dice.pick(words.MARKERS)]), error=lambda dice: serializer.dumps(words.error_body(dice)),
                  hollow=lambda dice: serializer.dumps([]), typed=False)


def json_list() -> Layout:
    """json.dumps of a list of floats; a client that asked for base64 stored that instead in one key of ten."""
    return Layout("JSON list of floats", lambda obj, dice: json.dumps([round(x, 7) for x in obj.tolist()] if obj.ndim == 1 else obj.tolist()).encode(), json.loads,
                  null=lambda dice: dice.pick((b"null", b"None", b"nil")), placeholder=lambda dice: json.dumps([dice.pick(words.MARKERS)]).encode(),
                  error=lambda dice: json.dumps(words.error_body(dice)).encode(), hollow=lambda dice: b"[]", typed=False)


def plain_text() -> Layout:
    """The answer itself, UTF-8."""
    return Layout("text", lambda obj, dice: obj.encode(), lambda data: data.decode(), null=lambda dice: dice.pick(words.NULLS).encode(),
                  placeholder=lambda dice: dice.pick(words.MARKERS).encode(), error=lambda dice: words.error_text(dice).encode(),
                  hollow=lambda dice: dice.pick((b" ", b"\n", b"\n\n  \n", b'""')), typed=False)
