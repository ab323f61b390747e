"""What a secret or a prompt looks like: key names, token shapes, harmless values. Pure text knowledge, no state.

In this domain "token" is a unit (`max_tokens=2048`, `KV token usage: 0.87`): a key that says token is a secret only when
it also says which (`hf_token`, `AUTH_TOKEN`). Every pattern is linear: runs are possessive, and a pattern that may fail
after a run can only start where a run starts.
"""

import re
from functools import lru_cache
from typing import Literal

Place = Literal["text", "query", "structure"]

# A replaced value. Never matched again, so that redacting twice changes nothing.
TOKEN = re.compile(r"\[(?:REDACTED:[a-z-]+:[0-9a-f]{8}|PROMPT len=\d+ h=[0-9a-f]{8})\]")
TOKEN_BEFORE = re.compile(rf"{TOKEN.pattern}\Z")

# ---- names of keys, normalised: camelCase split, lower case, `-` `.` and blanks as `_`

_PASSWORD = re.compile(
    r"(?:password|passwd|passphrase|requirepass|masterauth|rediscli_auth)s?\d*$"
    r"|(?:^|_)(?:db|redis|valkey|user|admin|root|default|mysql|pg|smtp|proxy|auth|master|sentinel|ssl|ssh|keystore)_?pass$"
    r"|(?:^|_)(?:pwd|pass|passcode|pass_?key)$"
)
_API_KEY = re.compile(r"(?:^|_)api_?keys?\d*(?:_(?:provided|value|\d+))?$|(?:^|_)(?:openai|anthropic|azure|wandb|cohere|mistral|gemini|hf)_key$")
_SECRET = re.compile(
    r"(?:^|_)(?:secrets?(?:_(?:value|data|string|text))?|credentials?|creds|(?:basic_|http_|proxy_)auth|cache_salt|jwt|(?:github|gitlab|azure)_pat)$"
    r"|(?:^|_)(?:access|secret|private|signing|encryption|master|license|account|shared_access|ssh|hmac|auth|session|"
    r"subscription|storage|webhook|secret_access)_?keys?(?:_id)?$"
)
_ACCESS_TOKEN = re.compile(
    r"(?:^|_)(?:access|auth|api|hf|hub|hugging_?face|bearer|refresh|session|id|csrf|xsrf|security|oauth2?|github|gitlab|gh|"
    r"gitea|slack|bot|jwt|vault|npm|pypi|wandb|service|sas|registry|deploy|secret|private|consul|k8s|kube|identity|device|"
    r"personal_access)_?tokens?$"
)
# EOS_TOKEN and its kind are pieces of a vocabulary, not secrets.
_VOCABULARY = re.compile(r"(?:^|_)(?:eos|bos|pad|unk|sep|cls|mask|stop|start|end|image|video|audio|special|bad|draft|"
                         r"first|next|last|max|min|num|per|pre|continue|tool|think|reasoning|eot|fim|placeholder)_token$")
_AUTHORIZATION = re.compile(r"(?:^|_)authori[sz]ation$")
_COOKIE = re.compile(r"(?:^|_)cookies?$")
_QUERY = re.compile(r"(?:^|_)(?:token|sig|signature|key|credential|auth|code|hmac|pw|jwt|assertion|ticket|secret)$")
_PROMPT = re.compile(r"(?:^|_)(?:prompts?|contents?|reasoning_content|prompt_text|input_text|output_text|generated_text|inputs)$")
_TOKEN_IDS = re.compile(r"(?:^|_)(?:prompt|output|input|generated|all|new)_(?:token_)?ids$|^token_ids$|(?:^|_)prompt_tokens$")
# These hold what users said only in certain surroundings.
_MAYBE_PROMPT = re.compile(r"^(?:text|output|arguments|input|reasoning|query|documents?|instruction|completion)$")
SURROUNDINGS = re.compile(
    r"choices|GenerateReqInput|EmbeddingReqInput|meta_info|CompletionOutput|\bout=\{|Generated response|function\\*[\"']"
    r"|\btype\\*[\"']\s*:\s*\\*[\"'](?:\w*_)?text\b|\\*[\"'](?:model|messages)\\*[\"']\s*:"
)
PROMPT_KINDS = frozenset({"prompt", "prompt-ids", "prompt-maybe"})
HEADER_KINDS = frozenset({"authorization", "cookie"})


@lru_cache(maxsize=4096)
def kind_of(key: str, place: Place = "text") -> str | None:
    """What the value of this key is: a kind of secret, a kind of prompt, or None.

    `token` alone is a secret in a query, header or option; in free text its value decides (kind `token`).
    """
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key[-128:].strip("-_. "))
    name = re.sub(r"[-. ]+", "_", split).lower()
    for pattern, kind in (
        (_PASSWORD, "password"), (_API_KEY, "api-key"), (_SECRET, "secret"), (_ACCESS_TOKEN, "access-token"),
        (_AUTHORIZATION, "authorization"), (_COOKIE, "cookie"), (_TOKEN_IDS, "prompt-ids"), (_PROMPT, "prompt"),
        (_MAYBE_PROMPT, "prompt-maybe"),
    ):
        if pattern.search(name):
            return kind
    if place == "query" and _QUERY.search(name):
        return "query"
    if name == "token":
        return "token" if place == "text" and key != "TOKEN" else "access-token"
    # MY_TOKEN in an environment, X-Foo-Token in a header.
    named = name.endswith("_token") and not _VOCABULARY.search(name)
    return "access-token" if named and (split.isupper() or key.startswith(("X-", "x-"))) else None


# ---- values

_HARMLESS = re.compile(
    r"(?i:none|null|nil|true|false|yes|no|on|off|set|unset|not|missing|required|invalid|empty|default|redacted|hidden|masked|"
    r"str|string|bytes|int|any|optional|union|list|secretstr|auto|unknown|must|is|was|are|and|or|of|the|for|file|env|nopass)"
    r"|[*x•.\-_…]+|[{(\[<]+|\$\w+|\$\{[^}]*\}|\{\{[^}]*\}\}|<[^<>]{1,60}>|%s|\{\w*\}"
)
_NUMBER = re.compile(r"[-+]?\d[\d_.,:/]*(?:e[-+]?\d+)?\s?(?:%|ns|us|ms|s|m|h|[KMGT]i?B?|B)?")
_DIGITS = re.compile(r"\d+")
_PATH = re.compile(
    r"(?:~|\.{1,2})?/(?:bin|etc|run|var|home|root|tmp|mnt|opt|usr|srv|data|models?|secrets?|proc|sys|dev|app|apps|workspace|work|"
    r"config|conf|certs?|ssl|keys|lib|lib64|cache|nfs|scratch|shared|Users|Volumes)(?:/[\w.@+:=,-]*)*|(?:~|\.{1,2})/[\w./@+-]*"
)
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?|(?:[\w-]+\.)+(?:com|net|org|io|ai|local|svc|internal|lan|cluster)(?::\d+)?")
OBJECT = re.compile(r"<[^<>]* at 0x[0-9a-f]+>?")
# In a traceback's source line: `password=self.password`, `api_key=get_key(`.
_CODE = re.compile(r"(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*[),;\]]*|(?:[A-Za-z_]\w*\.)*[a-z_]\w*\([^\"']*")
_ENV_NAME = re.compile(r"[A-Z][A-Z0-9]*+(?:_[A-Z0-9]++)++")
_WORDS = re.compile(r"[a-z]+|[A-Za-z_][A-Za-z_.]*")
# Words that turn up as values of a password and everywhere else too: replaced where found, never swept.
_COMMON = frozenset({
    "access", "accept", "access_token", "api_key", "api-key", "apikey", "auth_token", "hf_token", "passwd", "active", "admin", "administrator", "anonymous", "bearer", "cache", "client", "config",
    "content", "cookie", "credentials", "database", "default", "disabled", "engine", "enabled", "example", "expired",
    "failed", "failure", "foobared", "header", "invalid", "localhost", "manager", "master", "message", "metrics",
    "missing", "model", "models", "nvidia", "object", "openai", "optional", "password", "policy", "postgres", "prefill",
    "production", "prompt", "python", "replica", "request", "required", "response", "return", "runner", "secret",
    "secrets", "server", "service", "session", "sglang", "staging", "status", "string", "system", "timeout", "token",
    "tokens", "unknown", "update", "username", "valkey", "worker", "worker0", "your-api-key",
})


def is_harmless(value: str, kind: str, quoted: bool = False) -> bool:
    """Not a secret whatever the key says: None, booleans, numbers, paths, placeholders, object addresses."""
    bare = value.strip().rstrip(",;")
    if kind in PROMPT_KINDS and quoted:
        return not bare
    if not bare or _HARMLESS.fullmatch(bare) or OBJECT.fullmatch(bare):
        return True
    if kind in PROMPT_KINDS:
        return bool(_NUMBER.fullmatch(bare))
    if _NUMBER.fullmatch(bare):
        # `requirepass 123456` is a secret all the same; `session_token: 12` is a count.
        return not (kind in ("password", "api-key", "secret") and _DIGITS.fullmatch(bare) and len(bare) >= 4)
    return bool(_PATH.fullmatch(bare))


def is_code(value: str, key: str) -> bool:
    """A value without quotes that is a piece of a program: `self.password`, or the key itself."""
    if value.rstrip("),;]").rpartition(".")[2] == key.strip("-"):
        return True
    found = _CODE.fullmatch(value)
    if found is None:
        return False
    last = value.partition("(")[0].rstrip("),;]").rpartition(".")[2]
    return "(" in value or kind_of(last) is not None


def is_prose(value: str) -> bool:
    """A lower-case word or the name of a secret: found without quotes in free text, it is replaced but not hunted."""
    return _WORDS.fullmatch(value) is not None and ((value.islower() and value.isalpha()) or kind_of(value) is not None)


def is_random(value: str) -> bool:
    """Letters and digits mixed, or capitals inside: drawn, not written by a person."""
    return len(value) >= 12 and bool(re.search(r"\d", value) and re.search(r"[A-Za-z]", value)) and not re.search(r"[\s<>|/]", value)


def is_memorable(value: str) -> bool:
    """Rare enough to be replaced wherever it turns up again: no word, number, path, address or name of an environment variable."""
    return (
        6 <= len(value) <= 4096 and value.lower() not in _COMMON and not TOKEN.search(value)
        and not any(pattern.fullmatch(value) for pattern in (_HARMLESS, _NUMBER, _PATH, _ADDRESS, OBJECT, _ENV_NAME, SHAPES))
        and not value.startswith(("PROMPT len=", "REDACTED:"))
    )


# ---- shapes that are secrets wherever they stand; the group's name is the kind

_PREFIXED = r"(?<![A-Za-z0-9])"
SHAPES = re.compile(
    _PREFIXED + "(?:"
    # hf_config and hf_overrides are names; a key has digits or is long.
    r"(?P<hf>hf_(?:[A-Za-z0-9]{20,}+|(?=[A-Za-z]*\d)[A-Za-z0-9]{8,}+))"
    r"|(?P<sk>sk-(?!learn)[A-Za-z0-9_-]{8,}+|[sr]k_(?:live|test)_[A-Za-z0-9]{8,}+|nvapi-[A-Za-z0-9_-]{20,}+|AIza[A-Za-z0-9_-]{30,}+"
    r"|(?:gsk|r8|pcsk|tgp_v1|pypi|npm|dop_v1|lsv2_pt|fw|xai|pplx)[-_][A-Za-z0-9]{20,}+[A-Za-z0-9_-]*+|dapi[0-9a-f]{32})"
    r"|(?P<git>gh[pousr]_[A-Za-z0-9]{10,}+|github_pat_[A-Za-z0-9_]{20,}+|gl(?:pat|dt|rt|ptt|cbt)-[A-Za-z0-9_.-]{8,}+)"
    r"|(?P<slack>xox[a-z]-[A-Za-z0-9-]{8,}+|xapp-[A-Za-z0-9-]{10,}+)"
    r"|(?P<aws>(?:AKIA|ASIA)[A-Z0-9]{12,}+)"
    r"|(?P<google>ya29\.[A-Za-z0-9_-]{20,}+)"
    # No dot is asked for: a run that fails would be tried again at each of its dashes.
    r"|(?P<jwt>eyJ[A-Za-z0-9_-]{5,}+(?:\.[A-Za-z0-9_-]++){0,4})"
    r"|(?P<bearer>(?<=[Bb]earer )[A-Za-z0-9._~+/-]{8,}+=*)"
    r"|(?P<basic>(?<=[Bb]asic )[A-Za-z0-9+/]{8,}+={0,2})"
    r"|(?P<webhook>(?<=hooks\.slack\.com/services/)[A-Za-z0-9/]{12,}+)"
    r"|(?P<media>data:[\w/+.-]{1,80}+(?:;[\w=-]{1,40}+)?;base64,[A-Za-z0-9+/=_-]++)"
    r"|(?P<acl>(?<= #)[0-9a-f]{64}(?=[ \"]))"
    ")"
)
SHAPE_KIND = {
    "hf": "hf-token", "sk": "api-key", "git": "git-token", "slack": "slack-token", "aws": "aws-key", "google": "access-token",
    "jwt": "jwt", "bearer": "bearer", "basic": "basic", "webhook": "webhook", "acl": "acl-hash", "media": "prompt",
}
SHAPE_STEMS = (
    "hf_", "sk-", "sk_", "rk_", "nvapi", "gsk_", "r8_", "pcsk", "tgp_v1", "pypi-", "npm_", "dop_v1", "dapi", "lsv2", "fw_", "xai-", "pplx-",
    "aiza", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat", "glpat", "gldt", "glrt", "glptt", "glcbt", "xox", "xapp", "akia", "asia",
    "ya29", "eyj", "earer ", "asic ", "hooks.slack", ";base64,", " #",
)
EMAIL = re.compile(r"(?<![\w.%+-])[\w.%+-]++@(?:[A-Za-z0-9-]++\.)++[A-Za-z0-9-]++")
# `vllm@0.service`, `memcpy@libc.so.6`, `icon@2x.png`, `root@gpu-12.example.com` are no mail addresses.
_NOT_A_DOMAIN = frozenset({
    "service", "socket", "scope", "slice", "timer", "target", "mount", "so", "py", "js", "json", "yaml", "toml", "png",
    "jpg", "jpeg", "gif", "webp", "svg", "txt", "log", "sh",
})
_NOT_A_PERSON = frozenset({
    "root", "git", "node", "celery", "rabbit", "ubuntu", "ec2-user", "core", "admin",
})
PEM_BEGIN = re.compile(r"-----BEGIN (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----")
PEM_END = re.compile(r"-----END (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----")
PEM_BEFORE_END = re.compile(r"[A-Za-z0-9+/=\s\\]*+")
PEM_BODY = re.compile(r"(?>(?:[A-Za-z0-9+/=\s]++|\\++[nr]|[\w-]+: [^\n]*\n)*)")


def address_end(found: str) -> int:
    """How much of `who@labels` is a mail address: 0 when it is a unit, a library, a version or a login."""
    who, _, domain = found.partition("@")
    labels = domain.split(".")
    while labels and not labels[-1].isalpha():
        labels.pop()
    if len(labels) < 2 or labels[-1].lower() in _NOT_A_DOMAIN or who.lower() in _NOT_A_PERSON:
        return 0
    return len(who) + 1 + len(".".join(labels))


# ---- where values stand

_ANSI = r"(?:\x1b\[[\d;]*m)*+"
# A line end as it is, and as it reads inside JSON and strace output.
_NEWLINE = r"(?:\r?\n|(?:\\++r)?\\++n)"
# `key=`, `"key": `, `--key=`, `\"key\": `, `headers['key'] = `
KEY = re.compile(
    rf"(?<![\w.-])(?P<key>[\w.-]++){_ANSI}(?P<close>\\*+[\"'])?\]?[ \t]*+(?:=>|:=|={{1,2}}|:(?!//)){_ANSI}[ \t]*+"
)
KEY_STEMS = (
    "pass", "pwd", "secret", "token", "key", "auth", "cred", "cookie", "salt", "jwt", "prompt", "content", "text", "output", "_ids", "sig",
    "inputs", "arguments", "reasoning", "query", "document", "instruction", "completion", "code=", "pw=", "hmac", "ticket", "assertion", "\"input",
)
# API key with a blank is how people write it in messages.
HEADER_PAIR = re.compile(
    r"[(\[]b?\\*[\"'](?P<key>(?i:(?:proxy-)?authorization|(?:set-)?cookie|(?:x-)?api-key|x-auth-token))\\*[\"'],\s*+"
)
SPOKEN_KEY = re.compile(r"(?i)\bapi key(?: provided)?(?: is)?\\*[\"']?: *+")
# Between a word of a command and its argument: blank, list comma, RESP length, numbered redis-cli reply.
_GAP = rf"(?:\\*+[\"'])?(?:[ \t\0,]|{_NEWLINE}(?:\$\d+{_NEWLINE}|[ \t]*\d+\) ))++"
GAP = re.compile(_GAP)
OPTION = re.compile(rf"(?<![\w-])(?P<key>--?[A-Za-z][\w.-]*+|(?i:requirepass|masterauth|auth-pass \S{{1,80}}+)){_GAP}")
NEXT_OPTION = re.compile(r"--?[A-Za-z]")
OPTION_STEMS = ("--", "requirepass", "masterauth", "auth-pass")
CLIENT_PASS = re.compile(rf"(?:(?:redis|valkey|keydb)-(?:cli|benchmark)\b[^\n]{{0,400}}?[\s\"'\0]-a{_GAP}|\bsshpass\s+-p(?:{_GAP})?)")
CURL_USER = re.compile(r"\b(?:curl|wget)\b[^\n]{0,400}?[\s\"'](?:-u|--user)[\"']?[\s,]+[\"']?[^\s:\"']{1,80}+:")
# (stems, pattern that ends where the argument starts, kind)
ARGUMENTS = (
    (("-cli", "-benchmark", "sshpass"), CLIENT_PASS, "password"), (("curl", "wget"), CURL_USER, "password"),
    (("api key",), SPOKEN_KEY, "api-key"),
)
AUTH = re.compile(rf"(?:(?:(?<![\w-])|(?<=\\n))AUTH|(?<=\")auth(?=\\*\")){_GAP}")
# `AUTH failed`, `AUTH <password> called`: an error, not a command.
PROSE = re.compile(r"(?i)(?:fail\w*|error\w*|requir\w*|called|command|success\w*|succeeded|ok|is|was|needed|disabled|enabled|with\w*|"
                   r"using|but|token|method|mode|for|to|and|or|not|timeout|timed|on|in|from|denied|setname|<\w+>)[.,:;)]?")
ACL_RULE = re.compile(r"(?i:\bsetuser\\*\"?\s++\\*\"?[^\s\"]{1,200}+|\buser\s++\S{1,200}+\s++(?:on|off))(?P<rules>[^\n]*+)")
ACL_PASS = re.compile(r"(?<=[\s\"])([<>])([^\s\"\\>]{3,}+)")
# Kubernetes `name: X, value: y` and py-spy locals `"name": "x", …, "repr": "y"`, also over lines.
NAMED = re.compile(
    r"\bname(?P<close>\\*[\"'])?\s*[:=]\s*\\*[\"']?(?P<key>[\w.-]{1,100}+)"
    r"(?:(?!\bname\b)[^{}]){0,150}?\b(?:value|repr)\\*[\"']?\s*[:=]\s*"
)
URL = re.compile(r"://([^\s\"'<>\0]++)")
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*\Z")
STORE_SCHEME = re.compile(r"(?:rediss?|valkeys?|mongodb|postgres\w*|mysql|mariadb|amqps?|kafka|nats|sentinel)(?:\+\w+|-sentinel)?")
NEXT_URL = re.compile(r"[,;|](?=[A-Za-z][A-Za-z0-9+.-]{1,20}://)")

OPEN = re.compile(_ANSI + r"(?P<call>[A-Za-z_][\w.]{0,80}+[(\[])?[bBrRuUfF]{0,2}(?P<slashes>\\{0,15}+)(?P<quote>[\"'])")
# `os.environ["HF_TOKEN"]` names a secret, it is none.
LOOKUP = re.compile(r"(?:environ|getenv|get|pop|setdefault)[(\[]\Z|\[\Z")
PEEL = re.compile(r"\s*[bBrRuU]{0,2}(\\{0,15}+[\"'])")
USERINFO = re.compile(rf"(?P<user>(?:{TOKEN.pattern}|[^:])*+)(?P<colon>:?)(?P<password>.*)", re.DOTALL)
HOST = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d+)?(?:[/?#,;)\].\\]|\Z)")
QUOTED = {'"': re.compile(r'(?:[^"\\\n]|\\.)*+'), "'": re.compile(r"(?:[^'\\\n]|\\.)*+")}
# `(?>(?:…)+)`, not `(?:…)++`: on Python 3.11.2 (Debian 12) the latter keeps what an alternative that failed had read.
RUN = re.compile(rf"{_ANSI}(?P<run>(?>(?:{TOKEN.pattern}|[^\s\"'\0\x1b\\\[]++|\[|\\(?!n|r\\n))+))")
COOKIE_RUN = re.compile(r"(?P<run>(?>(?:=\\*\"[^\"\r\n]*+\"|[^\r\n\"'\0\\=]++|=|\\(?!n|r\\n))+))")
LINE = re.compile(r"(?P<run>(?>(?:[^\r\n\0\\]++|\\(?!n|r\\n))+))")
CREDENTIAL = re.compile(r"(?i)(?:bearer|basic|token|apikey|api-key|key|negotiate|ntlm)(?:[ \t]|%20)++")
WHOLE_SCHEME = re.compile(r"(?i)(?:digest|signature|aws4-hmac-sha256)\s")
NEXT_PAIR = re.compile(r"[,;&|](?=[\w.-]+[=:])")
# Read backwards: what closes the sentence, the list or the string around a value.
CLOSING = re.compile(r"(?:[,;.)\]}>\\]|[nrt]\\)*+")
CLOSING_AFTER_PLACEHOLDER = re.compile(r"[,;.)]*+")
STRING = re.compile(r"\\++\"((?:[^\"\\\n]|\\++[^\"\\\n])*+)\\++\"|\"((?:[^\"\\\n]|\\.)*+)\"|'((?:[^'\\\n]|\\.)*+)'")
_BETWEEN = rf"(?:[\s,]|{_NEWLINE})*+"
STRINGS = re.compile(rf"\[{_BETWEEN}(?:b?(?:{STRING.pattern}){_BETWEEN})++\]")
STRINGS_OPEN = re.compile(rf"\[{_BETWEEN}b?\\*[\"']")
IDS = re.compile(rf"(?:(?:tensor|array)\()?\[(?>(?:[\d\s,.]++|{_NEWLINE}|\[[\d\s,.]*+\])*)\]?")
UNQUOTED_PROMPT = re.compile(r"(?P<run>[^\W\d_][^\n]*?)(?=, [a-z_]++[=:]|[\r\n]|\\n|\\r\\n|\Z)")

# ---- environment: names whose values help a diagnosis; all others keep their name only

ENV_KEPT = re.compile(
    r"(?:VLLM|SGLANG|SGL|NCCL|TORCH|TORCHINDUCTOR|PYTORCH|CUDA|NVIDIA|NVSHMEM|NVTE|OMP|MKL|KMP|OPENBLAS|GOMP|RAY|TRITON|GLOO|UCX|RDMA|IB|"
    r"LMCACHE|MOONCAKE|FLASHINFER|TRTLLM|TLLM|TRANSFORMERS|HF_HUB|HF_DATASETS|TOKENIZERS|ROCM|ROCR|HIP|HSA|MIOPEN|RCCL|"
    r"ASCEND|HCCL|XLA|TPU|JAX|LLAMA_ARG|GGML|OLLAMA|DYN|GRPC|UVICORN|GUNICORN|SLURM|MALLOC|JEMALLOC|LC|KUBERNETES|NUMBA|TF)_\w*|PYTHON\w*"
    r"|HF_HOME|HF_ENDPOINT|PATH|LD_LIBRARY_PATH|LD_PRELOAD|LANG|TZ|HOSTNAME|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|NODE_RANK|"
    r"GROUP_RANK|MASTER_ADDR|MASTER_PORT|POD_NAME|POD_NAMESPACE|NODE_NAME|VIRTUAL_ENV|CONDA_PREFIX|WEB_CONCURRENCY|"
    r"PROMETHEUS_MULTIPROC_DIR|GPU_DEVICE_ORDINAL|GLIBC_TUNABLES|container|INVOCATION_ID"
)
