-- What the charges of a call do with holds: before the call is judged, commits are applied and open holds expire; what
-- an admitted call takes is noted after it. Nothing is written before `write_holds`.
--
-- A record is 'until' once its hold is committed, and 'until hits made deadline' as long as it is taken by its id; 'until
-- length' closes the counter. Open holds are in a set like calls in flight, see in_flight.lua. Where a take has opened
-- several, each names a key that has the keys of all of their sets.

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

-- What is known of the hold of a charge, once for each key in `known`; false if that is corrupt.
local function read_hold(charge, known)
  local hold = charge.hold
  if known[hold.key] == nil then
    known[hold.key] = (hold.is_open and read_calls or read_record)(hold.key, charge.is_shown) or false
  end
  local found = known[hold.key]
  if found and hold.action == 'open' then found.asked = (found.asked or 0) + hold.estimate end
  return found
end

-- The hits of the open holds on the counter of a charge.
local function held(charge)
  local hold = charge.hold
  return hold and hold.is_open and hold.key and hold.known.used or 0
end

-- The hits of open holds that must fit beside those that a charge asks for, with those that its call opens. A commit is
-- work that is done: it is compared with its limit alone.
local function asked_beside(charge)
  local action = charge.hold.action
  if action == 'open' then return held(charge) + charge.hold.known.asked end
  return action == 'beside' and held(charge) or 0
end

local function charge_more(charge, hits)
  local own = charge.hits
  charge.hits = hits
  charge.algorithm.charge(charge.account, charge)
  charge.hits = own
end

-- Drops open holds whose time has passed. Where their estimates are kept, each is charged as it would have been when its
-- time passed. A ban that began after now moves back: the clock was ahead.
local function expire(charge)
  local hold, known, present = charge.hold, charge.hold.known, now
  if hold.action == 'ban' and known.ends > now + (known.hits or hold.lifetime) then
    known.ends = now + (known.hits or hold.lifetime)
    known.value = text(known.ends) .. ' ' .. text(known.hits or hold.lifetime)
  end
  for _, call in ipairs(hold.is_open and hold.key and expire_calls(known) or {}) do
    if hold.keep and (not charge.algorithm.aligned or call.deadline >= charge.start) then
      now = call.deadline
      charge_more(charge, call.hits)
    end
  end
  now = present
end

-- Whether the counter was reset at this time or later.
local function is_before_reset(charge, made)
  local reset = charge.hold.reset and count(read_text(charge.hold.reset))
  return reset and made <= reset
end

-- Replaces held hits by the true number.
local function settle(charge, hits, used, made)
  -- Another window may hold it: time has passed, or the clock was set back.
  local is_elsewhere = charge.algorithm.aligned and (made < charge.start or made >= charge.stop)
  if used > hits then
    charge_more(charge, used - hits)
  elseif used < hits and not is_elsewhere and not is_before_reset(charge, made) then
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
  -- A call in flight has a place, whatever it uses.
  if not charge.algorithm.finish then charge.ended_hits = hits end
  if known.deadline <= now then return LATE end
  if charge.algorithm.finish then
    charge.algorithm.finish(charge.account, hold.id)
  else
    settle(charge, hits, hold.used or hits, known.made)
  end
  return APPLIED
end

-- Ends the oldest open hold, with all holds of its take, unless another charge of the call has ended one here. A call looks
-- for about `CALLS_MAX` other holds: after that, it ends only the oldest one, and the others of its take end at their deadlines.
local function end_oldest(charge, known, searched)
  if charge.algorithm.finish then return charge.algorithm.finish_oldest(charge.account) and APPLIED or REPEATED end
  local own = charge.hold.known
  local oldest = not own.ended_hits and end_oldest_call(own)
  if oldest then own.ended_hits = oldest.hits end
  charge.ended_hits = own.ended_hits
  local take = oldest and searched.count < CALLS_MAX and string.match(oldest.rest, '^ (.+)$')
  local keys = take and read_text(take)
  if keys then known[take] = { removed = true } end
  for key in string.gmatch(keys or '', '%S+') do
    searched.count = searched.count + 1
    -- A key that cannot be reached now keeps its hold.
    if known[key] == nil then known[key] = read_calls(key) end
    local hits = known[key] and end_call(known[key], oldest.id)
    if hits then known[key].ended_hits = hits end
  end
end

-- Applies what the charges of a call commit and end.
local function begin_holds(charges, known)
  for _, charge in ipairs(charges) do
    if charge.account and charge.hold and charge.hold.known then expire(charge) end
  end
  local searched = { count = 0 }
  for _, charge in ipairs(charges) do
    local action = charge.account and charge.hold and charge.kind ~= 'give_back' and charge.hold.action
    if action == 'commit' then charge.commit = commit(charge) end
    if action == 'by_id' then charge.commit = commit_by_id(charge) end
    if action == 'end_oldest' then charge.commit = end_oldest(charge, known, searched) end
  end
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
  hold.known.value = text(hold.known.ends) .. ' ' .. text(hold.lifetime)
end

-- Ends what a reservation has taken.
local function give_back_hold(charge)
  local hold = charge.hold
  if charge.algorithm.finish then charge.algorithm.finish(charge.account, hold.id) end
  if hold.known and hold.action == 'open' then end_call(hold.known, hold.id) end
  if hold.known and hold.action ~= 'ban' then hold.known.removed = hold.known.is_known end
end

-- Notes the hold of a charge that fits, in a call that is admitted.
local function take_hold(charge, opened)
  local hold, known = charge.hold, charge.hold.known
  if hold.action == 'open' then
    opened[#opened + 1] = charge
  elseif hold.action == 'by_id' then
    -- A commit that is late is recognized for as long again.
    local deadline = now + hold.lifetime
    known.ends, known.removed = deadline + hold.lifetime, false
    -- A call may charge the counter twice.
    known.held = math.min((known.held or 0) + charge.hits, COUNT_MAX)
    known.value = table.concat({ text(known.ends), text(known.held), text(now), text(deadline) }, ' ')
  end
end

-- Opens the holds of a take. Where they are on several counters, each names the key that has all of their keys.
local function open_holds(opened, known)
  local keys, latest = {}, 0
  for _, charge in ipairs(opened) do
    if not keys[charge.hold.key] then keys[charge.hold.key], keys[#keys + 1] = true, charge.hold.key end
    latest = math.max(latest, now + charge.hold.lifetime)
  end
  local take = #keys > 1 and opened[1].hold.take
  if take then known[take] = { value = table.concat(keys, ' '), ends = latest } end
  for _, charge in ipairs(opened) do
    local hold = charge.hold
    -- As long as an estimate may have to be charged.
    local lasts = charge.algorithm.lasts
    hold.known.kept_ms = lasts and lasts(charge) or charge.window
    add_call(hold.known, hold.id, hold.estimate, hold.lifetime, take and ' ' .. take or '')
  end
end

-- Before the counters: a commit that is repeated never counts twice.
local function write_holds(known)
  for key, hold in pairs(known) do
    if hold and hold.removed then
      redis.call('DEL', key)
    elseif hold and hold.value then
      redis.call('SET', key, hold.value, 'PXAT', text(hold.ends))
    elseif hold and hold.gone then
      write_calls(hold, hold.kept_ms or 0)
    end
  end
end
