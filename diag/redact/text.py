"""Finds secrets and prompts in free text: values by their key, arguments of commands, URLs, shapes, addresses.

Every pass is a function of the text and the tokens, is linear, and is skipped when no word is there without which it
cannot find anything. Values by key come first: a prompt that quotes a command line has to go as a whole.
"""

import base64
import re
from collections.abc import Callable, Iterator

from diag.redact import patterns as p
from diag.redact.tokens import Tokens
from diag.redact.values import Found, userinfo_end, value_at, without_quotes

Change = tuple[int, int, str] | None
_LOGINS = frozenset({"git", "hg", "ssh", "user", "default", "root", "admin"})


def redact(text: str, tokens: Tokens) -> str:
    """All passes, in order, without the sweep."""
    for rewrite in (_private_keys, _keyed, _commands, _urls, _shapes, _addresses):
        text = rewrite(text, tokens)
    return text


def whole(kind: str, value: str, tokens: Tokens) -> str | None:
    """A text that is nothing but the value of such a key, replaced (quotes around it stay); None to leave it."""
    opening, body, closing = without_quotes(value)
    if p.TOKEN.fullmatch(body) or p.is_harmless(body, kind, quoted=opening != ""):
        return None
    if kind in p.PROMPT_KINDS:
        kept = not tokens.hides_prompts or (kind == "prompt-ids" and not p.IDS.fullmatch(body))
        return None if kept else f"{opening}{tokens.prompt(body)}{closing}"
    if kind == "authorization":
        return f"{opening}{_credential(body, tokens)}{closing}"
    return f"{opening}{tokens.secret(kind, body)}{closing}"


def userinfo(value: str, tokens: Tokens) -> str:
    """`user:password`: the user stays."""
    found = p.USERINFO.fullmatch(value)
    if found is None or not found["password"] or p.TOKEN.fullmatch(found["password"]):
        return value
    return f"{found['user']}:{tokens.secret('password', found['password'])}"


def authority(scheme: str, rest: str, tokens: Tokens) -> str:
    """`user:password@host/...`, what follows `://`. A user alone is a token unless it is a usual login."""
    end = userinfo_end(scheme.lower(), rest)
    found = p.USERINFO.fullmatch(rest[:end]) if end > 0 else None
    if found is None:
        return rest
    user, password = found["user"], found["password"]
    login = len(user) < 20 if found["colon"] else user.lower() in _LOGINS or scheme in ("ssh", "sftp")
    if user and not login and not p.TOKEN.fullmatch(user):
        user = tokens.secret("url-password", user, encoded=True)
    if password and not p.TOKEN.fullmatch(password):
        password = tokens.secret("url-password", password, encoded=True)
    return f"{user}{found['colon']}{password}{rest[end:]}"


def _credential(value: str, tokens: Tokens) -> str:
    """`Bearer x` keeps its first word, so that the same key elsewhere gets the same token."""
    found = p.CREDENTIAL.match(value)
    scheme = found[0] if found else ""
    rest = value[len(scheme):]
    if p.TOKEN.match(rest) or p.is_harmless(rest, "authorization"):
        return value
    if scheme.lower().startswith("basic"):
        _learn_basic(rest, tokens)
    return scheme + tokens.secret("bearer" if scheme.lower().startswith("bearer") else "authorization", rest)


def _learn_basic(encoded: str, tokens: Tokens) -> bool:
    """The password inside a basic credential; False when it is none."""
    try:
        user, colon, password = base64.b64decode(encoded, validate=True).decode("utf-8").partition(":")
    except ValueError:
        return False
    if colon and password:
        tokens.learn("password", password)
    return bool(colon) and user.isprintable()


def _spliced(text: str, matches: Iterator[re.Match[str]], change: Callable[[re.Match[str]], Change]) -> str:
    """`text` with the changes its matches ask for; a match inside what was already replaced is passed over."""
    out: list[str] = []
    done = 0
    for found in matches:
        if found.start() < done or _is_glued(text, found.start()) or (asked := change(found)) is None:
            continue
        start, end, replacement = asked
        out += (text[done:start], replacement)
        done = end
    return "".join((*out, text[done:])) if out else text


def _is_glued(text: str, at: int) -> bool:
    """Right behind a token: the rest of a longer word, which was left alone when the word was whole."""
    return at > 0 and text[at - 1] == "]" and p.TOKEN_BEFORE.search(text, max(0, at - 60), at) is not None


def _private_keys(text: str, tokens: Tokens) -> str:
    if "PRIVATE KEY" not in text:
        return text

    def block(begin: re.Match[str]) -> Change:
        closing = p.PEM_END.search(text, begin.end(), begin.end() + 16_384)
        body = closing or p.PEM_BODY.match(text, begin.end())
        end = body.end() if body else begin.end()
        return begin.start(), end, tokens.shape("private-key", text[begin.start():end])

    def cut(end: re.Match[str]) -> Change:
        """The end of a key whose beginning is missing, as at the head of a log's tail."""
        before = text[max(0, end.start() - 8_192):end.start()]
        body = p.PEM_BEFORE_END.match(before[::-1])
        start = end.start() - (body.end() if body else 0)
        return start, end.end(), tokens.shape("private-key", text[start:end.end()])

    text = _spliced(text, p.PEM_BEGIN.finditer(text), block)
    return _spliced(text, p.PEM_END.finditer(text), cut)


def _keyed(text: str, tokens: Tokens) -> str:
    """`key=value`, `"key": "value"`, header pairs, and the value beside a name."""
    lower = text.lower()
    if not _has(lower, p.KEY_STEMS):
        return text

    def named(found: re.Match[str]) -> Change:
        kind = p.kind_of(found["key"], "structure")
        close = found.groupdict().get("close")
        return None if kind is None or kind == "prompt-maybe" else _at(text, found.end(), kind, found["key"], tokens, close)

    def after_key(found: re.Match[str]) -> Change:
        key, before = found["key"], text[max(0, found.start() - 2):found.start()]
        query = before.endswith(("?", "&"))
        kind = p.kind_of(key, "query" if query else "structure" if key.startswith("--") else "text")
        # The user of a URL may be called like a secret: left to the URL pass. And a token names its kind.
        if kind is None or before == "//" or p.TOKEN.match(text, max(0, found.start() - len("[REDACTED:"))):
            return None
        if kind == "prompt-maybe" and not p.SURROUNDINGS.search(text, max(0, found.start() - 160), found.start()):
            return None
        return _at(text, found.end(), kind, key, tokens, found["close"], query)

    if "name" in lower and _has(lower, ("value", "repr")):
        text = _spliced(text, p.NAMED.finditer(text), named)
    if _has(lower, ("cookie", "auth", "api-key")):
        text = _spliced(text, p.HEADER_PAIR.finditer(text), named)
    return _spliced(text, p.KEY.finditer(text), after_key)


def _at(text: str, at: int, kind: str, key: str, tokens: Tokens, close: str | None = None, query: bool = False) -> Change:
    """The value of `key` that starts at `at`, replaced; None to leave it. `close` is the quote after the key, if any."""
    if p.TOKEN.match(text, at) or p.OBJECT.match(text, at) or (kind in p.PROMPT_KINDS and not tokens.hides_prompts):
        return None
    ids = p.IDS.match(text, at)
    if kind in p.PROMPT_KINDS and ids and any(c.isdigit() for c in ids[0]):
        return at, ids.end(), _requoted(tokens.prompt(ids[0]), close)
    if kind == "prompt-ids":
        return None
    if kind != "token" and (strings := p.STRINGS.match(text, at)):
        return at, strings.end(), p.STRING.sub(lambda one: _string(one, kind, tokens), strings[0])
    if kind != "token" and (cut := p.STRINGS_OPEN.match(text, at)):
        return _cut_list(text, cut, kind, tokens)
    value = value_at(text, at, kind, query)
    # What an earlier pass left alone must be left alone again when a part of it has become a token since.
    said = p.TOKEN.sub("x", value.value) if value else ""
    if value is None or not said or p.TOKEN.match(value.value) or p.is_harmless(said, kind, value.quoted):
        return None
    if kind in p.PROMPT_KINDS:
        certain = value.quoted or (kind == "prompt" and key.lower().endswith("prompt") and not p.is_code(said.split()[0], key))
        return (value.start, value.end, tokens.prompt(value.value)) if certain else None
    if kind == "authorization":
        return value.start, value.end, _credential(value.value, tokens)
    certain = value.quoted or query or key.startswith("-")
    if (not certain and kind != "cookie" and p.is_code(said, key)) or (kind == "token" and not p.is_random(said)):
        return None
    token = tokens.secret(kind, value.value, certain=certain, encoded=query)
    return value.start, value.end, _requoted(token, close if value.value.isdigit() and not value.quoted else None)


def _requoted(token: str, close: str | None) -> str:
    """In JSON, what replaces a bare number or list must be a string."""
    return f"{close}{token}{close}" if close else token


def _string(found: re.Match[str], kind: str, tokens: Tokens) -> str:
    group = found.lastindex or 1
    replaced = whole(kind, found[group], tokens)
    before, after = found.start(group) - found.start(), found.end(group) - found.start()
    return found[0] if replaced is None else f"{found[0][:before]}{replaced}{found[0][after:]}"


def _cut_list(text: str, opened: re.Match[str], kind: str, tokens: Tokens) -> Change:
    """A list of strings that does not end as one: the rest of the line goes."""
    newline = text.find("\n", opened.end())
    end = len(text) if newline < 0 else newline
    if opened.end() == end or p.TOKEN.match(text, opened.end()):
        return None
    rest = text[opened.end():end]
    return opened.end(), end, tokens.prompt(rest) if kind in p.PROMPT_KINDS else tokens.secret(kind, rest, certain=False)


def _commands(text: str, tokens: Tokens) -> str:
    """Arguments that follow after a blank: options, `requirepass x`, `redis-cli -a x`, `curl -u`, AUTH, ACL rules."""
    lower = text.lower()

    def option(found: re.Match[str]) -> Change:
        name = found["key"]
        kind = "password" if name.startswith("auth-pass") else p.kind_of(name, "structure")
        if kind is None or kind in ("prompt-ids", "prompt-maybe") or p.NEXT_OPTION.match(text, found.end()):
            return None
        return _at(text, found.end(), kind, name, tokens)

    if _has(lower, p.OPTION_STEMS):
        text = _spliced(text, p.OPTION.finditer(text), option)
    for stems, pattern, kind in p.ARGUMENTS:
        if _has(lower, stems):
            text = _arguments(text, pattern, kind, tokens)
    if "auth" in lower:
        text = _spliced(text, p.AUTH.finditer(text), lambda found: _auth(text, found.end(), tokens))
    if "user" in lower:
        text = p.ACL_RULE.sub(lambda rule: rule[0][: rule.start("rules") - rule.start()] + _acl(rule["rules"], tokens), text)
    return text


def _arguments(text: str, pattern: re.Pattern[str], kind: str, tokens: Tokens) -> str:
    return _spliced(text, pattern.finditer(text), lambda found: _at(text, found.end(), kind, "-", tokens))


def _auth(text: str, at: int, tokens: Tokens) -> Change:
    """`AUTH password`, `AUTH user password`: both go, since which is which is not certain."""
    first = value_at(text, at)
    if first is None or not first.value or _is_prose(first):
        return None
    gap = p.GAP.match(text, first.end)
    second = value_at(text, gap.end()) if gap else None
    if second is not None and second.value and _is_prose(second):
        return None
    if p.TOKEN.match(first.value):
        return None
    token = tokens.secret("password", first.value, certain=first.quoted)
    if second is None or not second.value or p.TOKEN.match(second.value):
        return first.start, first.end, token
    between = text[first.end:second.start]
    return first.start, second.end, token + between + tokens.secret("password", second.value, certain=second.quoted)


def _is_prose(found: Found) -> bool:
    return not found.quoted and p.PROSE.fullmatch(p.TOKEN.sub("x", found.value)) is not None


def _acl(rules: str, tokens: Tokens) -> str:
    def rule(found: re.Match[str]) -> str:
        return found[0] if p.TOKEN.match(found[2]) else found[1] + tokens.secret("password", found[2])

    return p.ACL_PASS.sub(rule, rules)


def _urls(text: str, tokens: Tokens) -> str:
    if "://" not in text or "@" not in text:
        return text

    def run(found: re.Match[str]) -> Change:
        if "@" not in found[1]:
            return None
        parts = p.NEXT_URL.split(found[1])
        scheme = p.SCHEME.search(text[max(0, found.start() - 24):found.start()])
        head = authority(scheme[0] if scheme else "", parts[0], tokens)
        tail = found[1][len(parts[0]):]
        return found.start(1), found.end(), head + (_urls(tail, tokens) if len(parts) > 1 else tail)

    return _spliced(text, p.URL.finditer(text), run)


def _shapes(text: str, tokens: Tokens) -> str:
    if not _has(text.lower(), p.SHAPE_STEMS):
        return text

    def shape(found: re.Match[str]) -> str:
        group, value = found.lastgroup or "", found[0]
        if _is_glued(text, found.start()):
            return value
        if group == "media":
            return tokens.prompt(value) if tokens.hides_prompts else value
        if group == "bearer" and not (len(value) >= 20 or re.search(r"\d", value)):
            return value
        if (group == "basic" and not _learn_basic(value, tokens)) or (group == "jwt" and "." not in value and len(value) < 60):
            return value
        return tokens.shape(p.SHAPE_KIND[group], value) if group != "bearer" else tokens.secret("bearer", value)

    return p.SHAPES.sub(shape, text)


def _addresses(text: str, tokens: Tokens) -> str:
    if "@" not in text:
        return text

    def mail(found: re.Match[str]) -> str:
        end = 0 if _is_glued(text, found.start()) else p.address_end(found[0])
        return tokens.shape("email", found[0][:end]) + found[0][end:] if end else found[0]

    return p.EMAIL.sub(mail, text)


def _has(lower: str, stems: tuple[str, ...]) -> bool:
    return any(stem in lower for stem in stems)
