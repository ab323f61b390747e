"""Texts of a cache: answers, captions, markers, null words and error bodies, and honest texts that only talk about those."""

from __future__ import annotations

import json

from dice import Dice

SUBJECTS = ("A brown dog", "The invoice", "A crowded street market", "The bar chart", "An old lighthouse", "The patient record", "A red bicycle",
            "The contract", "A plate of noodles", "The circuit board", "一只黑猫", "Ein alter Bahnhof", "La plage au coucher du soleil", "The router")
VERBS = ("shows", "stands next to", "is covered by", "was signed for", "lists", "is followed by", "explains", "depends on", "leans against", "reflects")
OBJECTS = ("three blue boxes", "the quarterly revenue", "a wooden fence", "the second clause", "a bowl of fruit", "the delivery date", "两张椅子",
           "a calm sea", "the total of 1,482.50 EUR", "a narrow bridge", "the warranty period", "several people with umbrellas", "ein Fahrplan")
TAILS = ("in the morning light.", "as agreed in March.", "according to section 4.", "with a slight blur on the left.", "which is common in this region. 🙂",
         "so the answer follows.", "and nothing else is visible.", "for the period of twelve months.", "near the entrance.")

MARKERS = ("__SKIP__", "<skip>", "SKIPPED", "__IMAGE_SKIPPED__", "__PLACEHOLDER__", "<placeholder>", "[PLACEHOLDER]", "placeholder_embedding",
           "IMAGE_UNAVAILABLE", "<image_missing>", "__MISSING__", "__PENDING__", "dummy_embedding", "EMPTY_EMBEDDING", "__SENTINEL__", "not_available")
NULLS = ("null", "None", "nil", "NULL", "nan", "__NULL__")

SHORT = ("Yes.", "No.", "42", "Paris", "None.", "False", "0", "B", "No error.", "N/A applies to row 3.", "$19.99", "是的。")

# Honest answers: none of them is an error body, a marker or a null, whatever words they use.
ERROR_TALK = (
    "None of the four options is correct, because the sum of the angles is 180 degrees.",
    "In Python, None is the null object; comparing with `is None` is safer than with `==`.",
    "The picture shows a placeholder icon with the words 'image not available' on a grey background.",
    "Error 404 is what a web server answers when the page was not found; 503 means that it is overloaded.",
    "Traceback (most recent call last) is the first line that Python prints when an exception is not caught. Read it from the bottom up.",
    "A screenshot of a terminal with the message 'CUDA out of memory' in red letters.",
    "To handle rate limits, catch the 429 error and retry with exponential back-off, for example with the tenacity library.",
    "The placeholder `<name>` in the template has to be replaced by the customer's name before the letter is sent.",
    "A null marker is a short-lived entry such as `__NULL__` that keeps a cache from being asked again for what does not exist.",
    "An error body looks like this:\n```json\n{\"error\": {\"message\": \"Rate limit reached\", \"code\": 429}}\n```\nIt should never be cached.",
    "The sign on the door reads 'Sorry, skipped today - back tomorrow'.",
    "NaN means 'not a number'; it spreads through every sum, so a mean of [1, NaN] is NaN.",
    "The error bars in the figure overlap, so there is no significant difference between the two groups.",
    "Undefined behaviour, a null pointer and an uncaught exception are three different things: the first is a property of the language.",
    "A man holds a cardboard that says ERROR: HUMOR NOT FOUND.",
    "The log shows 'Internal Server Error' at 10:42, two minutes after the deployment; roll back first, then look at the diff.",
)

ERROR_TEXTS = (
    "Error code: 429 - {'error': {'message': 'Rate limit reached for gpt-4o-mini', 'type': 'requests', 'code': 'rate_limit_exceeded'}}",
    "Internal Server Error",
    "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1></center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n",
    'Traceback (most recent call last):\n  File "/app/server.py", line 118, in generate\n    out = model(**batch)\nRuntimeError: CUDA error: device-side assert triggered\n',
    "litellm.RateLimitError: RateLimitError: OpenAIException - You exceeded your current quota, please check your plan and billing details.",
    "upstream connect error or disconnect/reset before headers. reset reason: connection timeout",
    '{"detail":"Internal Server Error"}',
    '{"error":{"message":"The server is overloaded or not ready yet.","type":"server_error","param":null,"code":null}}',
    "Error: 503 Service Unavailable",
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity)",
)

MESSAGES = ("Rate limit reached for gpt-4o-mini in organization org-x on tokens per min", "CUDA out of memory. Tried to allocate 2.00 GiB",
            "upstream timed out (110: Connection timed out) while reading response header", "cannot identify image file <_io.BytesIO object>",
            "The server had an error while processing your request", "Connection refused: encoder:50051", "HTTP 403 while fetching the image")


def sentence(dice: Dice) -> str:
    return f"{dice.pick(SUBJECTS)} {dice.pick(VERBS)} {dice.pick(OBJECTS)} {dice.pick(TAILS)}"


def text(dice: Dice, low: int = 2, high: int = 7) -> str:
    """An honest text of low to high sentences."""
    return " ".join(sentence(dice) for _ in range(dice.rnd.randint(low, high)))


def long_text(dice: Dice) -> str:
    """A text some hundred times as long as its siblings: a model that did not stop."""
    return " ".join([sentence(dice)] * dice.rnd.randrange(400, 900))


def error_body(dice: Dice) -> dict[str, object]:
    """An error body as an HTTP API answers it, decoded."""
    message = dice.pick(MESSAGES)
    kind = dice.rnd.randrange(4)
    if kind == 0:
        return {"error": {"message": message, "type": "server_error", "param": None, "code": dice.pick((429, 500, 503))}}
    if kind == 1:
        return {"detail": message, "status_code": dice.pick((500, 502, 503, 504))}
    if kind == 2:
        return {"error": message, "status": dice.pick((429, 500, 503))}
    return {"object": "error", "message": message, "type": "InternalServerError", "code": 500}


def error_text(dice: Dice) -> str:
    """An error body as text."""
    return json.dumps(error_body(dice)) if dice.chance(0.3) else dice.pick(ERROR_TEXTS)
