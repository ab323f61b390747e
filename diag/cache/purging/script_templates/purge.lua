-- Looks at keys, and deletes those that are exactly what a scan saw. Run by purge.sh and restore.sh through EVAL.
--
-- ARGV[1]  what to do:
--            probe    answer "ready"
--            check    say what each key is now
--            verify   the same, where "expired" is a missing one that had an expiry, and "there" one that is no string
--                     and dumps in another way: that may be its order only
--            backup   as check, and for each unchanged one its name, absolute expiry (ms, 0: never) and DUMP
--            delete   UNLINK each unchanged one
-- ARGV[2]  lines of keys.tsv: database, key in hex, SHA-1, expiry ("-": none), bytes, type, and with what it goes:
--          "-" alone, ">" and "<" only together with the key of the next line, of the line before,
--          "!HEX" only if that other key does not exist
--
-- Unchanged means: the same SHA-1 (of the value; of the DUMP, if it is no string), and it expires if it did, and does
-- not if it did not. Names of keys come in as hexadecimal data and are never code.

local function unhex(text)
  return (text:gsub('%x%x', function(pair) return string.char(tonumber(pair, 16)) end))
end

local function failed(command, answer)
  local why = type(answer) == 'table' and answer.err or 'an answer that was not expected'
  return 'failed ' .. command .. ': ' .. why:gsub('[^ -~]', '?')
end

local function state_of(key, kind, sha1, expires)
  local read = kind == 'string' and 'GET' or 'DUMP'
  local value = redis.pcall(read, key)
  if value == false then return 'missing' end
  if type(value) ~= 'string' then
    local why = type(value) == 'table' and value.err or ''
    if why:find('WRONGTYPE', 1, true) then return 'changed' end
    if why:find('non local key', 1, true) then return 'elsewhere' end
    return failed(read, value)
  end
  if redis.sha1hex(value) ~= sha1 then return 'changed' end
  local ttl = redis.pcall('PTTL', key)
  if type(ttl) ~= 'number' then return failed('PTTL', ttl) end
  if ttl == -2 then return 'missing' end
  if (ttl >= 0) ~= expires then return 'changed' end
  return 'same'
end

-- A lone half stays as soon as its other half is there.
local function is_alone(other)
  local there = redis.pcall('EXISTS', other)
  if there == 0 then return 'same' end
  return type(there) == 'number' and 'changed' or failed('EXISTS', there)
end

-- Unix time in milliseconds as text; '0': the key never expires.
local function expiry_of(key)
  local at = redis.pcall('PEXPIRETIME', key)
  if type(at) ~= 'number' then -- before Redis 7.0
    local now = redis.call('TIME')
    local ttl = redis.call('PTTL', key)
    at = ttl < 0 and ttl or tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000) + ttl
  end
  return string.format('%.0f', at < 0 and 0 or at)
end

local function delete(key)
  local gone = redis.pcall('UNLINK', key)
  if type(gone) ~= 'number' then return failed('UNLINK', gone) end
  return gone == 1 and 'deleted' or 'missing'
end

local what, lines = ARGV[1], ARGV[2]
if what == 'probe' then return { 'ready' } end

-- Each part ends at a tab that is in none of them: a name of megabytes is no work.
local LINE = '^(%d+)\t(%x*)\t(%x+)\t([%d-]+)\t%d+\t(%S+)\t([-<>!]%x*)\t[^\t]*\t[^\t]*\t[^\t]*\t([^\t]*)$'
local items = {}
local database = '0' -- purge.sh connects to this one
for line in lines:gmatch('[^\n]+') do
  local db, hex, sha1, expiry, kind, with, name = line:match(LINE)
  local item = { db = db or '?', name = name or '?', state = 'failed this line of keys.tsv is damaged' }
  if db then
    item.key, item.kind, item.expires, item.with = unhex(hex), kind, expiry ~= '-', with
    local answer = db ~= database and redis.pcall('SELECT', db)
    if type(answer) == 'table' and answer.err then
      item.state = failed('SELECT', answer)
    else
      database = db
      item.state = state_of(item.key, kind, sha1, item.expires)
      if item.state == 'same' and with:sub(1, 1) == '!' then item.state = is_alone(unhex(with:sub(2))) end
    end
  end
  items[#items + 1] = item
end

-- Two halves go together or not at all.
for i = 2, #items do
  local one, other = items[i - 1], items[i]
  if other.with == '<' and (one.state == 'same') ~= (other.state == 'same') then
    local half = one.state == 'same' and one or other
    half.state = 'changed'
  end
end

local out = {}
for _, item in ipairs(items) do
  local state = item.state
  if state == 'same' and (what == 'backup' or what == 'delete') and item.db ~= database then
    redis.call('SELECT', item.db)
    database = item.db
  end
  if what == 'backup' then
    local expires, dump = '', ''
    if state == 'same' then
      dump = redis.pcall('DUMP', item.key)
      if type(dump) ~= 'string' then state, dump = failed('DUMP', dump), '' else expires = expiry_of(item.key) end
    end
    for _, part in ipairs({ state, item.key or '', expires, dump }) do out[#out + 1] = part end
  else
    if what == 'delete' and state == 'same' then state = delete(item.key) end
    if what == 'verify' and state == 'missing' and item.expires then state = 'expired' end
    if what == 'verify' and state == 'changed' and item.kind ~= 'string' then state = 'there' end
    out[#out + 1] = state .. '\t' .. item.db .. '\t' .. item.name
  end
end
return out
