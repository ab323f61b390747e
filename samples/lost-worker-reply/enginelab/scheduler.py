"""Which requests run next, and how many tokens of each."""

BLOCK_TOKENS = 16
TOKENS_PER_STEP = 8192
"""The budget of a step; an item that cannot be split and is larger never fits."""


class Scheduler:
    """Requests in turn; `unsplittable` tokens must fit into one step."""

    def __init__(self) -> None:
        self.running: list[dict[str, int]] = []

    def schedule(self) -> list[dict[str, int]]:
        """Tries until something fits, as the loop of a scheduler does that plans zero tokens in every pass."""
        while True:
            chosen = [request for request in self.running if self.fits(request)]
            if chosen:
                return chosen

    def fits(self, request: dict[str, int]) -> bool:
        return self.get_num_common_prefix_blocks(request) * BLOCK_TOKENS <= TOKENS_PER_STEP

    def get_num_common_prefix_blocks(self, request: dict[str, int]) -> int:
        return sum(1 for _ in range(0, request["unsplittable"], BLOCK_TOKENS))
