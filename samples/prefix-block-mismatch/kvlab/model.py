"""A transformer small enough for a CPU whose answers come out of its KV cache.

Three layers, four query heads on two KV heads. The first KV head of each layer is built by hand, the second is random:

* layer 0 looks at the two tokens before each token,
* layer 1 finds where the context went on after the same two words, and copies that word (an induction head);
  where nothing fits it looks at the start mark and begins a canned sentence,
* layer 2 checks that the start mark is in the context; without it nothing is said.

So a prompt that ends like a line that it holds is answered with the rest of that line, as long as the blocks with the
start mark and with that line hold what they should. The residual stream is turned by a random rotation, which makes all
tensors dense, and the random heads and layers write to a part of it that no answer depends on.

Arithmetic goes block by block with one shape, so that a row has the same bits whether it was computed in one go, after a
hit, or while decoding - until a batch size above 1 is set: then sums are split as kernels split them for other batches.
"""

from dataclasses import dataclass, field

import torch

from kvlab.words import BOS, CANNED, EOS, FIRST_CANNED, VOCABULARY

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 3, 4, 2, 96
WIDTH, REST = 44, 64
"""Size of a token's vector, and of the part of the residual stream that holds no meaning."""
CURRENT, BEFORE, BEFORE_THAT, COPIED, SAID, MARKS, NOISE = (
    slice(0, 44), slice(44, 88), slice(88, 132), slice(132, 176), slice(176, 220), slice(220, 224), slice(224, 288),
)  # fmt: skip
HIDDEN = 288
START, STARTED = MARKS.start, MARKS.start + 1
SHARP = 30.0
"""Score of a perfect match; one that is half as good gets e^-15 of its weight."""
SINK, FITS_BEFORE = 0.75, 0.7
SURE = 16.0
"""Logit of a word that is copied; others get about a half of it at most."""
MAX_TOKENS = 2048
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

Tensor = torch.Tensor


@dataclass(frozen=True)
class Layer:
    """Weights of one layer; rows in, columns out."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    up: Tensor
    down: Tensor
    query_bias: Tensor
    key_bias: Tensor
    up_bias: Tensor
    turn: tuple[Tensor, Tensor]
    """Cosine and sine of the rotary positions, [position, KV head, half a head]."""


@dataclass
class Trace:
    """What the layers saw in one forward pass, rows in the order of the tokens."""

    hidden_in: list[list[Tensor]] = field(default_factory=lambda: [[] for _ in range(LAYERS)])
    attention: list[list[Tensor]] = field(default_factory=lambda: [[] for _ in range(LAYERS)])
    hidden_out: list[list[Tensor]] = field(default_factory=lambda: [[] for _ in range(LAYERS)])


class Model:
    """Seeded weights and the paged pools that they write to."""

    def __init__(self, blocks: int, block_size: int, dtype: str, seed: int) -> None:
        self.dtype, self.block_size, self.batch = DTYPES[dtype], block_size, 1
        generator = torch.Generator().manual_seed(seed)
        embedding, layers, self._said, self._words = _weights(generator)
        self.embedding = embedding.to(self.dtype)
        self.layers = [_cast(layer, self.dtype) for layer in layers]
        shape = (blocks + 1, block_size, KV_HEADS, HEAD_DIM)  # ids begin with 1
        self.keys = [torch.zeros(shape, dtype=self.dtype) for _ in range(LAYERS)]
        self.values = [torch.zeros(shape, dtype=self.dtype) for _ in range(LAYERS)]
        self._eos_bias = torch.zeros(VOCABULARY)
        self._eos_bias[EOS] = 0.3 * SURE

    @torch.inference_mode()
    def forward(self, token_ids: list[int], start: int, table: list[int], trace: Trace | None = None) -> Tensor:
        """Compute tokens `start`... of a sequence, write their keys and values, return the logits after the last one."""
        last = self._run_block(token_ids, start, table, trace)
        while (start := (start // self.block_size + 1) * self.block_size) < len(token_ids):
            last = self._run_block(token_ids, start, table, trace)
        return SURE * (last.float()[None] @ self._said @ self._words)[0] + self._eos_bias

    def _run_block(self, token_ids: list[int], start: int, table: list[int], trace: Trace | None) -> Tensor:
        """The tokens of one block from `start` on, in a tile of a whole block -> hidden state of the last one."""
        index, first = divmod(start, self.block_size)
        end = min(len(token_ids), (index + 1) * self.block_size) - index * self.block_size
        ids = torch.zeros(self.block_size, dtype=torch.long)
        ids[first:end] = torch.tensor(token_ids[start : start + end - first])
        hidden = self.embedding[ids]
        for number in range(LAYERS):
            before = hidden
            attended = self._attend(number, hidden, index, slice(first, end), table)
            layer = self.layers[number]
            hidden = hidden + attended
            hidden = hidden + self._multiply(torch.relu(self._multiply(hidden, layer.up).float() + layer.up_bias), layer.down)
            if trace is not None:
                trace.hidden_in[number].append(before[first:end].clone())
                trace.attention[number].append(attended[first:end].clone())
                trace.hidden_out[number].append(hidden[first:end].clone())
        return hidden[end - 1]

    def _attend(self, number: int, hidden: Tensor, index: int, rows: slice, table: list[int]) -> Tensor:
        layer, size = self.layers[number], self.block_size
        positions = slice(index * size, (index + 1) * size)
        query = (self._multiply(hidden, layer.query).float() + layer.query_bias).view(size, HEADS, HEAD_DIM)
        key = (self._multiply(hidden, layer.key).float() + layer.key_bias).view(size, KV_HEADS, HEAD_DIM)
        value = self._multiply(hidden, layer.value).view(size, KV_HEADS, HEAD_DIM)
        query, key = self._rotate(layer, query, positions), self._rotate(layer, key, positions)
        self.keys[number][table[index], rows] = key[rows]
        self.values[number][table[index], rows] = value[rows]
        seen = torch.tensor(table[: index + 1])
        keys = self.keys[number][seen].view(-1, KV_HEADS, HEAD_DIM)
        values = self.values[number][seen].view(-1, KV_HEADS, HEAD_DIM)
        grouped = query.view(size, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM).permute(1, 2, 0, 3).reshape(KV_HEADS, -1, HEAD_DIM)
        scores = self._multiply(grouped, keys.permute(1, 2, 0)).float() / HEAD_DIM**0.5
        allowed = torch.arange(keys.shape[0])[None] <= torch.arange(positions.start, positions.stop)[:, None]
        scores = scores.view(KV_HEADS, HEADS // KV_HEADS, size, -1).masked_fill(~allowed, float("-inf"))
        weights = scores.softmax(-1).to(self.dtype).view(KV_HEADS, -1, keys.shape[0])
        mixed = self._multiply(weights, values.permute(1, 0, 2)).view(HEADS, size, HEAD_DIM)
        return self._multiply(mixed.permute(1, 0, 2).reshape(size, HEADS * HEAD_DIM), layer.output)

    def _rotate(self, layer: Layer, vectors: Tensor, positions: slice) -> Tensor:
        heads = vectors.shape[1]
        cosine, sine = (part[positions].repeat_interleave(heads // KV_HEADS, dim=1) for part in layer.turn)
        left, right = vectors.float().chunk(2, dim=-1)
        return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1).to(self.dtype)

    def _multiply(self, left: Tensor, right: Tensor) -> Tensor:
        """A product, summed in float32; with a batch above 1 in as many parts, as kernels for other batches do."""
        left, right = left.float(), right.float()
        if self.batch == 1:
            return (left @ right).to(self.dtype)
        step = -(-left.shape[-1] // min(self.batch, 8))
        parts = [left[..., at : at + step] @ right[..., at : at + step, :] for at in range(0, left.shape[-1], step)]
        return torch.stack(parts).sum(0).to(self.dtype)


def _cast(layer: Layer, dtype: torch.dtype) -> Layer:
    """The weights as that type holds them, in float32 again for the arithmetic."""
    fields = {name: value.to(dtype).float() for name, value in vars(layer).items() if isinstance(value, Tensor)}
    return Layer(**fields, turn=layer.turn)


def _weights(generator: torch.Generator) -> tuple[Tensor, list[Layer], Tensor, Tensor]:
    """Embedding, layers, and the two halves of the readout."""
    words = torch.randn(VOCABULARY, WIDTH, generator=generator)
    words = words / words.norm(dim=1, keepdim=True)
    rotation = torch.linalg.qr(torch.randn(HIDDEN, HIDDEN, generator=generator))[0]
    embedding = torch.zeros(VOCABULARY, HIDDEN)
    embedding[:, CURRENT] = words
    embedding[BOS, START] = 1.0
    embedding[:, NOISE] = 0.3 * torch.randn(VOCABULARY, REST, generator=generator)
    layers = [_layer(number, words, generator) for number in range(LAYERS)]
    return embedding @ rotation, [_turned(layer, rotation) for layer in layers], rotation.T[:, SAID].contiguous(), words.T.contiguous()


def _turned(layer: Layer, rotation: Tensor) -> Layer:
    """The same layer for a residual stream that is rotated."""
    into = {name: rotation.T @ getattr(layer, name) for name in ("query", "key", "value", "up")}
    out = {name: getattr(layer, name) @ rotation for name in ("output", "down")}
    rest = {name: getattr(layer, name) for name in ("query_bias", "key_bias", "up_bias", "turn")}
    return Layer(**into, **out, **rest)


def _layer(number: int, words: Tensor, generator: torch.Generator) -> Layer:
    def random(*shape: int, scale: float) -> Tensor:
        return scale * torch.randn(*shape, generator=generator)

    query, query_bias = torch.zeros(HIDDEN, HEADS, HEAD_DIM), torch.zeros(HEADS, HEAD_DIM)
    key, key_bias = torch.zeros(HIDDEN, KV_HEADS, HEAD_DIM), torch.zeros(KV_HEADS, HEAD_DIM)
    value, output = torch.zeros(HIDDEN, KV_HEADS, HEAD_DIM), torch.zeros(HEADS, HEAD_DIM, HIDDEN)
    up, down, up_bias = random(HIDDEN, 4 * REST, scale=0.1), random(4 * REST, HIDDEN, scale=0.0), torch.zeros(4 * REST)
    query[:, 2:] = random(HIDDEN, HEADS - 2, HEAD_DIM, scale=0.5)
    key[:, 1] = random(HIDDEN, HEAD_DIM, scale=0.5)
    value[:, 1] = random(HIDDEN, HEAD_DIM, scale=0.5)
    output[2:, :, NOISE] = random(HEADS - 2, HEAD_DIM, REST, scale=0.05)
    down[:, NOISE] = random(4 * REST, REST, scale=0.05)
    scale = SHARP * HEAD_DIM**0.5
    half = HEAD_DIM // 2
    speeds = torch.stack((torch.zeros(half), 10000.0 ** (-torch.arange(half) / half)))
    eye = torch.eye(WIDTH)
    value[CURRENT, 0, :WIDTH] = eye
    if number == 0:
        speeds[0] = torch.pi * torch.rand(half, generator=generator)
        direction = random(HEAD_DIM, scale=1.0)
        key_bias[0] = direction / direction.norm()
        key[CURRENT, 0] = random(WIDTH, HEAD_DIM, scale=0.2 / HEAD_DIM**0.5)
        for head, target in enumerate((BEFORE, BEFORE_THAT)):
            query_bias[head] = scale * _rotated(key_bias[0], speeds[0], -(head + 1))
            output[head, :WIDTH, target] = eye
    elif number == 1:
        query[CURRENT, 0, :WIDTH] = scale * eye
        query[BEFORE, 0, WIDTH : 2 * WIDTH] = scale * FITS_BEFORE * eye
        query_bias[0, -1] = scale
        key[BEFORE, 0, :WIDTH] = eye
        key[BEFORE_THAT, 0, WIDTH : 2 * WIDTH] = FITS_BEFORE * eye
        key[START, 0, -1] = SINK
        value[START, 0, :WIDTH] = words[FIRST_CANNED] - words[BOS]
        output[0, :WIDTH, COPIED] = eye
    else:
        query_bias[0, -1] = scale
        key[START, 0, -1] = 1.0
        value[:, 0] = 0.0
        value[START, 0, 0] = 1.0
        value[CURRENT, 0, 1 : WIDTH + 1] = eye
        output[0, 0, STARTED] = 1.0
        up[:, : 2 * WIDTH + len(CANNED)] = 0.0
        down[: 2 * WIDTH + len(CANNED)] = 0.0
        up[COPIED, :WIDTH], up[COPIED, WIDTH : 2 * WIDTH] = eye, -eye
        up[STARTED, : 2 * WIDTH], up_bias[: 2 * WIDTH] = 1.0, -1.0
        down[:WIDTH, SAID], down[WIDTH : 2 * WIDTH, SAID] = eye, -eye
        for index in range(len(CANNED)):  # each word of the canned sentence calls the next, the last one the end
            unit, following = 2 * WIDTH + index, FIRST_CANNED + index + 1 if index + 1 < len(CANNED) else EOS
            up[CURRENT, unit], up_bias[unit] = words[FIRST_CANNED + index], -0.7
            down[unit, SAID] = 10.0 * words[following]
    angles = torch.arange(MAX_TOKENS)[:, None, None] * speeds[None]
    return Layer(
        query.flatten(1), key.flatten(1), value.flatten(1), output.flatten(0, 1), up, down,
        query_bias.flatten(), key_bias.flatten(), up_bias, (angles.cos(), angles.sin()),
    )  # fmt: skip


def _rotated(vector: Tensor, speeds: Tensor, steps: int) -> Tensor:
    left, right = vector.chunk(2)
    cosine, sine = (steps * speeds).cos(), (steps * speeds).sin()
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine))
