-- What the charges of a call do with holds: before the call is judged, commits are applied and open holds expire; what
-- an admitted call takes is noted after it. Nothing is written before `write_holds`.
--
-- A record is 'until' once its hold is committed, and 'until hits made deadline' as long as it is taken by its id. An
-- open hold is a member of a sorted set, by its deadline: 'id number', and where its take has opened several holds, the
-- keys of all of their sets.

-- What became of a commit, in replies.
local APPLIED, REPEATED, LATE = -3, -4, -5

-- No hold ends further ahead: the longest lifetime and a day for clocks that differ, in milliseconds.
local HOLD_AHEAD_MS = 691200000

local function read_record(key)
  local value = read_text(key)
  if value == false then return false end
  local ends, hits, made, deadline = string.match(value or '0', '^(%d+) ?(%d*) ?(%d*) ?(%d*)$')
  if not ends then return false end
  return {
    is_known = value ~= nil, ends = tonumber(ends),
    hits = tonumber(hits), made = tonumber(made), deadline = tonumber(deadline),
  }
end

local function read_open_holds(key)
  local open = redis.pcall('ZCOUNT', key, '(' .. text(now), '+inf')
  if type(open) == 'table' then return false end
  return { open = open, expired = redis.call('ZCOUNT', key, '-inf', text(now)), takes = 0, taken = {} }
end

-- What is known of the hold of a charge, once for each key in `known`; false if that is corrupt.
local function read_hold(charge, known)
  local hold = charge.hold
  if known[hold.key] == nil then
    local is_open = hold.estimate ~= nil
    known[hold.key] = (is_open and read_open_holds or read_record)(hold.key)
  end
  if hold.action == 'open' and known[hold.key] then known[hold.key].takes = known[hold.key].takes + 1 end
  return known[hold.key]
end

-- The hits of the open holds on the counter of a charge.
local function held(charge)
  local hold = charge.hold
  return hold and hold.estimate and hold.key and (hold.known.open + #hold.known.taken) * hold.estimate or 0
end

-- The hits that must fit beside those that a call charges to the counter.
local function held_with_own(charge)
  return held(charge) + charge.hold.known.takes * charge.hold.estimate
end

local function charge_more(charge, hits)
  local own = charge.hits
  charge.hits = hits
  charge.algorithm.charge(charge.account, charge)
  charge.hits = own
end

-- Charges the estimates of holds whose time has passed, where they are kept, unless they would no longer count if they
-- had been charged when it passed.
local function expire(charge)
  local hold, known = charge.hold, charge.hold.known
  if known.expired == 0 then return end
  known.expired, known.drops = 0, true
  if not hold.keep then return end
  local from = charge.algorithm.aligned and text(charge.start) or '(' .. text(now - charge.window)
  local counting = redis.call('ZCOUNT', hold.key, from, text(now))
  if counting > 0 then charge_more(charge, counting * hold.estimate) end
end

-- Replaces held hits by the true number.
local function settle(charge, hits, used, made)
  -- Another window may hold it: time has passed, or the clock was set back.
  local is_elsewhere = charge.algorithm.aligned and (made < charge.start or made >= charge.stop)
  if used > hits then
    charge_more(charge, used - hits)
  elseif used < hits and not is_elsewhere then
    charge.made = made
    charge.algorithm.give_back(charge.account, hits - used, charge, hits)
  end
end

local function commit(charge)
  local hold, known = charge.hold, charge.hold.known
  if hold.deadline <= now or hold.deadline > now + HOLD_AHEAD_MS then return LATE end
  if charge.algorithm.finish then return charge.algorithm.finish(charge.account, hold.id) and APPLIED or REPEATED end
  if known.is_known then return REPEATED end
  known.is_known, known.value, known.ends = true, text(hold.deadline), hold.deadline
  settle(charge, hold.held, hold.used, hold.made)
  return APPLIED
end

-- nil for a take: the first call with its id, which does not end it.
local function commit_by_id(charge)
  local hold, known = charge.hold, charge.hold.known
  -- It is gone even if the clock is set back.
  known.removed = known.is_known and known.ends <= now
  if known.removed or not known.is_known then
    if not hold.is_end then return nil end
    -- The take was not seen, or is forgotten.
    known.is_known, known.removed, known.hits, known.ends = true, false, nil, now + hold.lifetime
    known.value = text(known.ends)
    if not charge.algorithm.finish then settle(charge, 0, hold.used or charge.hits, now) end
    return APPLIED
  end
  if not known.hits then return REPEATED end
  local hits = known.hits
  known.hits, known.value = nil, text(known.ends)
  if known.deadline <= now then return LATE end
  if charge.algorithm.finish then
    charge.algorithm.finish(charge.account, hold.id)
  else
    settle(charge, hits, hold.used or hits, known.made)
  end
  return APPLIED
end

-- Ends the oldest open hold, with all holds of its take, unless another charge of the call has ended one here.
local function end_oldest(charge, known, ended)
  if charge.algorithm.finish then return charge.algorithm.finish_oldest(charge.account) and APPLIED or REPEATED end
  local own = charge.hold.key
  if known[own].has_ended then return nil end
  local member = redis.call('ZRANGEBYSCORE', own, '(' .. text(now), '+inf', 'LIMIT', 0, 1)[1]
  local id, keys = string.match(member or '', '^(%S+) %d+(.*)$')
  local numbers = {}
  for key in string.gmatch(id and (keys ~= '' and keys or own) or '', '%S+') do
    numbers[key] = (numbers[key] or 0) + 1
    local other = id .. ' ' .. numbers[key] .. keys
    -- A key that cannot be reached now keeps its hold.
    local deadline = redis.pcall('ZSCORE', key, other)
    if type(deadline) == 'string' and tonumber(deadline) > now then
      ended[#ended + 1] = { key = key, member = other }
      if known[key] then known[key].open, known[key].has_ended = known[key].open - 1, true end
    end
  end
end

-- Applies what the charges of a call commit and end. Returns the members that have ended.
local function begin_holds(charges, known)
  local ended = {}
  for _, charge in ipairs(charges) do
    local hold = charge.account and charge.hold
    if hold and hold.known and hold.estimate then expire(charge) end
  end
  for _, charge in ipairs(charges) do
    local action = charge.account and charge.hold and charge.kind ~= 'give_back' and charge.hold.action
    if action == 'commit' then charge.commit = commit(charge) end
    if action == 'by_id' then charge.commit = commit_by_id(charge) end
    if action == 'end_oldest' then charge.commit = end_oldest(charge, known, ended) end
  end
  return ended
end

-- Until when the counter of a charge with a hold is closed; nil if it is open. A ban holds nothing: its record is the time
-- until which it closes the counter.
local function closed_until(charge)
  local hold = charge.hold
  return hold.action == 'ban' and hold.known.ends > now and hold.known.ends or nil
end

-- Closes the counter of a charge that does not fit. One that is closed stays closed no longer than before.
local function close(charge)
  local hold = charge.hold
  if hold.action ~= 'ban' or closed_until(charge) then return end
  hold.known.ends = now + hold.lifetime
  hold.known.value = text(hold.known.ends)
end

-- Ends what a reservation has taken.
local function give_back_hold(charge)
  local hold = charge.hold
  if charge.algorithm.finish then charge.algorithm.finish(charge.account, hold.id) end
  if hold.known and hold.action ~= 'ban' then hold.known.removed = hold.known.is_known end
end

-- Notes the hold of a charge that fits, in a call that is admitted.
local function take_hold(charge, opened)
  local hold, known = charge.hold, charge.hold.known
  if hold.action == 'open' then
    known.taken[#known.taken + 1], opened[#opened + 1] = charge, charge
  elseif hold.action == 'by_id' then
    -- A commit that is late is recognized for as long again.
    local deadline = now + hold.lifetime
    known.ends, known.removed = deadline + hold.lifetime, false
    -- A call may charge the counter twice.
    known.held = math.min((known.held or 0) + charge.hits, COUNT_MAX)
    known.value = table.concat({ text(known.ends), text(known.held), text(now), text(deadline) }, ' ')
  end
end

local function write_opened(opened)
  local keys, numbers = {}, {}
  for i, charge in ipairs(opened) do keys[i] = charge.hold.key end
  local all = #keys > 1 and ' ' .. table.concat(keys, ' ') or ''
  for i, charge in ipairs(opened) do
    local hold, key = charge.hold, keys[i]
    numbers[key] = (numbers[key] or 0) + 1
    local member = hold.id .. ' ' .. numbers[key] .. all
    redis.call('ZADD', key, text(now + hold.lifetime), member)
    local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
    -- As long as an estimate may have to be charged.
    local expiring = redis.pcall('PEXPIREAT', key, text(last + charge.window))
    if type(expiring) == 'table' then
      -- The user may not: no key stays without an expiry.
      redis.call('ZREM', key, member)
      error(expiring)
    end
  end
end

-- Before the counters: a commit that is repeated never counts twice.
local function write_holds(known, ended, opened)
  for key, hold in pairs(known) do
    if hold and hold.removed then
      redis.call('DEL', key)
    elseif hold and hold.value then
      redis.call('SET', key, hold.value, 'PXAT', text(hold.ends))
    elseif hold and hold.drops then
      redis.call('ZREMRANGEBYSCORE', key, '-inf', text(now))
    end
  end
  for _, of in ipairs(ended) do redis.call('ZREM', of.key, of.member) end
  write_opened(opened)
end
