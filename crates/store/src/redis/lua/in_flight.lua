-- The calls in flight, or in a set of their own the holds without ids that are open on a counter: a sorted set with two
-- members for each call. The score of 'id' is its deadline in Unix milliseconds. 'id hits lifetime', perhaps followed by
-- ' ' and the caller or the key of its take, has the deadline below zero. The last member is '=' and the sum of all hits, at
-- an infinite score. So a call costs its own members, whatever its hits, and no other call's are read.
local in_flight = {}
ALGORITHMS.fl2 = in_flight

-- The most calls that leave at once since their time has passed, that a refund ends, or among which a denied call looks for
-- the one that makes room. The next call goes on with what remains.
local CALLS_MAX = 100

-- The most calls that leave with one charge since their time has passed: the charges of a call share `CALLS_MAX`.
local expired_max = CALLS_MAX

local function in_flight_call(member, score)
  local id, hits, lifetime, rest = string.match(member or '', '^(%x+) (%d+) (%d+)(.*)$')
  hits, lifetime = count(hits), count(lifetime)
  return lifetime and { member = member, id = id, hits = hits or 0, lifetime = lifetime, rest = rest, deadline = -tonumber(score) }
end

-- Up to `most` stored calls that end at these scores, by descending deadline; with 'REV' by ascending deadline, and of
-- equal ones the larger id first. The first ones that are gone are `set.passed`, and not read again.
local function stored_calls(set, most, from, to, ...)
  local calls, first, page = {}, set.passed[from] or 0, most
  local passed, members = first, nil
  repeat
    members = redis.call('ZRANGE', set.key, from, to, 'BYSCORE', 'WITHSCORES', 'LIMIT', first, page, ...)
    for i = 1, #members, 2 do
      local call = in_flight_call(members[i], members[i + 1])
      -- What a refund has left of it.
      local rest = call and set.gone[call.member] and set.added[call.id]
      if rest and rest.deadline == call.deadline then call.hits = rest.hits end
      if not call or set.gone[call.member] and not rest then
        if #calls == 0 then passed = passed + 1 end
      elseif #calls < most then
        calls[#calls + 1] = call
      end
    end
    first, page = first + page, 2 * page
  until #calls == most or #members < page
  set.passed[from] = passed
  return calls
end

local function oldest_calls(set, most)
  return stored_calls(set, most, '(-' .. text(now), '-inf', 'REV')
end

local function newest_calls(set, most)
  return stored_calls(set, most, '-inf', '(-' .. text(now))
end

-- If the newest call began after now, the clock was ahead: such calls begin now. They move at once, whatever becomes of the
-- call; while the server takes no writes they stay.
local function set_back(set, newest, is_shown)
  if newest.deadline <= now + newest.lifetime then return end
  local moved = {}
  set.last = 0
  for _, call in ipairs(newest_calls(set, CALLS_MAX)) do
    local deadline = math.min(call.deadline, now + call.lifetime)
    set.last = math.max(set.last, deadline)
    if deadline < call.deadline then
      for _, part in ipairs({ text(deadline), call.id, '-' .. text(deadline), call.member }) do moved[#moved + 1] = part end
    end
  end
  if not is_shown then redis.pcall('ZADD', set.key, unpack(moved)) end
end

-- The calls at a key; nil if it holds something else. `added` are calls by their ids, `gone` are stored members that are
-- removed.
local function read_calls(key, is_shown)
  local last = redis.pcall('ZRANGE', key, -1, -1)
  if last.err then return nil end
  local set = { key = key, used = 0, gone = {}, gone_count = 0, last_gone = 0, passed = {}, added = {} }
  if not last[1] then return set end
  local newest = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  local call, sum = in_flight_call(newest[1], newest[2]), count(string.match(last[1], '^=(%d+)$'))
  local deadline = call and call.deadline
  if not sum or not call or deadline % 1 ~= 0 or deadline <= 0 or deadline > now + MAX_AHEAD_MS then return nil end
  set.used, set.stored, set.last = sum, last[1], deadline
  set_back(set, call, is_shown)
  return set
end

local function remove_call(set, call)
  set.oldest = nil
  set.gone[call.member], set.gone[call.id], set.gone_count = true, true, set.gone_count + 1
  set.used, set.added[call.id] = set.used - call.hits, nil
end

-- Number of calls that have not been dropped.
local function count_calls(set)
  return redis.call('ZCOUNT', set.key, '-inf', '(0') - set.gone_count
end

-- Drops calls whose time has passed. Returns them, the oldest first.
local function expire_calls(set)
  local expired = set.stored and stored_calls(set, expired_max, '(0', '-' .. text(now), 'REV') or {}
  for _, call in ipairs(expired) do remove_call(set, call) end
  return expired
end

-- Ends the call with this id. Returns its hits; nil if it is not in flight.
local function end_call(set, id)
  local deadline = set.stored and not set.gone[id] and tonumber(redis.call('ZSCORE', set.key, id))
  if not deadline or deadline <= now then return nil end
  -- Calls with one deadline are in the order of their ids.
  local score = '-' .. text(deadline)
  local from = redis.call('ZCOUNT', set.key, '-inf', '(' .. score)
  local to = from + redis.call('ZCOUNT', set.key, score, score) - 1
  while from < to do
    local middle = math.floor((from + to) / 2)
    if string.sub(redis.call('ZRANGE', set.key, middle, middle)[1], 1, #id) < id then from = middle + 1 else to = middle end
  end
  local call = in_flight_call(redis.call('ZRANGE', set.key, from, from)[1], score)
  if not call or call.id ~= id then return nil end
  remove_call(set, call)
  set.changed = true
  return call.hits
end

-- Ends the call with the earliest deadline. Returns the call, or nil if none is left.
local function end_oldest_call(set)
  local oldest = set.stored and oldest_calls(set, 1)[1]
  if oldest then
    remove_call(set, oldest)
    set.changed = true
  end
  return oldest
end

-- Adds a call that begins now. One with this id that is in flight becomes a part of it.
local function add_call(set, id, hits, lifetime, rest)
  local known = set.added[id]
  local before = known and known.hits or end_call(set, id) or 0
  set.added[id] = { hits = before + hits, lifetime = lifetime, rest = rest, deadline = now + lifetime }
  set.used, set.changed = set.used + hits + (known and 0 or before), true
end

-- The set is never empty in between: in a hash slot that is being moved, an empty one could not be filled again.
local function write_calls(set, kept_ms)
  if not set.changed and set.gone_count == 0 then return end
  set.passed = {}
  local sum, members, adds = '=' .. text(set.used), {}, {}
  if set.used > 0 and sum ~= set.stored then adds = { 'inf', sum } end
  for id, call in pairs(set.added) do
    local member = id .. ' ' .. text(call.hits) .. ' ' .. text(call.lifetime) .. call.rest
    set.gone[id], set.gone[member] = nil, nil
    for _, part in ipairs({ text(call.deadline), id, '-' .. text(call.deadline), member }) do adds[#adds + 1] = part end
  end
  for member in pairs(set.gone) do members[#members + 1] = member end
  if set.stored and sum ~= set.stored then members[#members + 1] = set.stored end
  local function remove(try)
    local removed = #members > 0 and try('ZREM', set.key, unpack(members))
    return type(removed) ~= 'table'
  end
  if next(set.added) == nil then
    -- First, since a full server still takes it. What has expired is never a reason to refuse a call.
    if remove(set.changed and redis.call or redis.pcall) and #adds > 0 then redis.call('ZADD', set.key, unpack(adds)) end
    return
  end
  redis.call('ZADD', set.key, unpack(adds))
  local expiring = redis.pcall('PEXPIREAT', set.key, text(in_flight.ends(set) + kept_ms))
  if type(expiring) == 'table' then
    -- The user may not: no key stays without an expiry.
    for i = 2, #adds, 2 do redis.pcall('ZREM', set.key, adds[i]) end
    error(expiring)
  end
  remove(redis.call)
end

function in_flight.read(charge)
  local set = read_calls(charge.key, charge.is_shown)
  if set then expire_calls(set) end
  return set
end

function in_flight.finish(set, id)
  return end_call(set, id) ~= nil
end

-- Returns whether there is one.
function in_flight.finish_oldest(set)
  return end_oldest_call(set) ~= nil
end

-- The newest places are given back.
function in_flight.refund(set, hits)
  local most = set.stored and math.min(hits, CALLS_MAX) or 0
  for _, call in ipairs(most > 0 and newest_calls(set, most) or {}) do
    local remaining = call.hits - hits
    remove_call(set, call)
    set.changed = true
    if remaining > 0 then
      set.added[call.id] = { hits = remaining, lifetime = call.lifetime, rest = call.rest, deadline = call.deadline }
      set.used = set.used + remaining
    end
    if remaining >= 0 then return end
    hits = -remaining
  end
end

-- A reservation is given back by its id.
function in_flight.give_back() end

function in_flight.fits(set, hits, charge)
  return set.used + hits <= charge.limit
end

function in_flight.charge(set, charge)
  add_call(set, charge.hold.id, charge.hits, charge.hold.lifetime, charge.caller ~= '' and ' ' .. charge.caller or '')
end

function in_flight.used(set)
  return set.used
end

-- Each call as a log writes its hits. The sum in it is not used here.
function in_flight.entries(set, most)
  local calls = set.stored and oldest_calls(set, most) or {}
  for i, call in ipairs(calls) do calls[i] = text(call.deadline) .. ' 0 ' .. text(call.hits) .. call.rest end
  return calls
end

function in_flight.remaining(set, charge)
  return charge.limit - set.used
end

function in_flight.ends(set)
  if set.last_gone ~= set.gone_count then
    local newest = newest_calls(set, 1)[1]
    set.last, set.last_gone = newest and math.min(newest.deadline, now + newest.lifetime), set.gone_count
  end
  local last = math.max(now, set.last or now)
  for _, call in pairs(set.added) do last = math.max(last, call.deadline) end
  return last
end

-- Only a denied call needs it, and that has added nothing. Its charges look at the same calls, which are read twice at most.
function in_flight.admits_at(set, hits, charge)
  local surplus, ends = set.used + hits - charge.limit, in_flight.ends(set)
  if hits <= charge.limit and surplus > 0 and set.stored then
    local most = math.min(surplus, CALLS_MAX)
    if not set.oldest or set.oldest.most < most then
      most = set.oldest and CALLS_MAX or most
      set.oldest = oldest_calls(set, most)
      set.oldest.most = most
    end
    for _, call in ipairs(set.oldest) do
      surplus = surplus - call.hits
      if surplus <= 0 then return math.min(call.deadline, ends) end
    end
  end
  return ends
end

function in_flight.write(set)
  write_calls(set, 0)
end
