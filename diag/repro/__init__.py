"""The experiment of incident 2: does a prefix cache answer with somebody else's blocks? One process, one endpoint.

    prompts.py     the failing prompts of a person, from a JSONL file
    variants.py    the same prompts changed a little: what fills the cache (words.py: what may stand for what)
    classing.py    one answer against the good one: empty, cut short, echo, garbled, different, same
    near_ties.py   was the other answer only a coin toss of the arithmetic?
    client.py      one question, one answer, whatever the server does (http_post.py: one exchange that ends in time)
    sending.py     the pace, retries, and when an endpoint counts as dead
    counters.py    what /metrics says about the prefix cache (gauge.py: read while the experiment runs)
    baseline.py    how the cache is bypassed, and what a good answer is
    experiment.py  the arms: variants, re-asks, confirmation
    record.py      what happened, as values
    verdict.py     what follows from it

Everything but client, http_post, sending, gauge, baseline and experiment is pure.
"""
