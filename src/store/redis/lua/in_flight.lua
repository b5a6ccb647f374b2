-- The calls in flight: a sorted set. Each place that a call occupies is a member 'id number', numbered from 1, whose
-- score is the call's deadline in Unix milliseconds, so that places are counted without looking at each. A caller
-- that is remembered is a member '=id caller', whose score is the deadline below zero.
local in_flight = {}
ALGORITHMS.fl = in_flight

-- A deadline further ahead than a call may last was noted while the clock was ahead. It moves back at once, whatever
-- becomes of the call; while the server takes no writes it stays.
local function set_back(key, latest)
  local ahead = redis.call('ZRANGEBYSCORE', key, '(' .. latest, '+inf')
  for _, member in ipairs(ahead) do redis.pcall('ZADD', key, latest, member) end
  ahead = redis.call('ZRANGEBYSCORE', key, '-inf', '(-' .. latest)
  for _, member in ipairs(ahead) do redis.pcall('ZADD', key, '-' .. latest, member) end
end

-- `gone` are the stored members that end, `added` are pairs of score and member.
function in_flight.read(charge)
  local newest = redis.pcall('ZRANGE', charge.key, -1, -1, 'WITHSCORES')
  if newest.err then return nil end
  local account = { key = charge.key, used = 0, gone = {}, gone_count = 0, added = {}, places = {} }
  local member, deadline = newest[1], tonumber(newest[2])
  if not member then return account end
  local is_place = string.find(member, '^%x+ %d+$') and deadline > 0 and deadline % 1 == 0
  if not is_place and string.sub(member, 1, 1) ~= '=' or deadline > now + MAX_AHEAD_MS then return nil end
  if deadline > now + charge.window and not charge.is_shown then set_back(charge.key, text(now + charge.window)) end
  account.used = redis.call('ZCOUNT', charge.key, '(' .. text(now), '+inf')
  account.changed = redis.call('ZCOUNT', charge.key, '-' .. text(now), text(now)) > 0
  return account
end

-- The first `count` places that remain, as pairs of a deadline and a member.
local function places_of(account, count)
  local stored = redis.call('ZRANGEBYSCORE', account.key, '(' .. text(now), '+inf', 'WITHSCORES',
    'LIMIT', 0, count + account.gone_count)
  local places = {}
  for i = 1, #stored, 2 do
    if not account.gone[stored[i]] then places[#places + 1] = { tonumber(stored[i + 1]), stored[i] } end
  end
  return places
end

local function remove(account, member)
  account.gone[member], account.gone_count, account.changed = true, account.gone_count + 1, true
  if string.sub(member, 1, 1) ~= '=' then account.used = account.used - 1 end
end

-- Ends the call with this id. Returns whether there is one.
function in_flight.finish(account, id)
  local first = id .. ' 1'
  local deadline = not account.gone[first] and tonumber(redis.call('ZSCORE', account.key, first))
  if not deadline or deadline <= now then return false end
  for _, score in ipairs({ text(deadline), '-' .. text(deadline) }) do
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', account.key, score, score)) do
      if string.match(member, '^=?(%x+)') == id and not account.gone[member] then remove(account, member) end
    end
  end
  return true
end

-- Ends the call with the earliest deadline. Returns whether there is one.
function in_flight.finish_oldest(account)
  local oldest = places_of(account, 1)[1]
  return oldest ~= nil and in_flight.finish(account, string.match(oldest[2], '^%x+'))
end

-- The newest places are given back.
function in_flight.refund(account, hits)
  local places = hits > 0 and account.used > 0 and places_of(account, account.used) or {}
  for i = #places, math.max(1, #places - hits + 1), -1 do remove(account, places[i][2]) end
end

-- A reservation is given back by its id.
function in_flight.give_back() end

function in_flight.fits(account, hits, charge)
  return account.used + hits <= charge.limit
end

function in_flight.charge(account, charge)
  local id, known = charge.hold.id, account.places[charge.hold.id] or 0
  account.deadline = now + charge.hold.lifetime
  for place = known + 1, known + charge.hits do
    account.added[#account.added + 1] = { text(account.deadline), id .. ' ' .. place }
  end
  if charge.caller ~= '' then
    account.added[#account.added + 1] = { '-' .. text(account.deadline), '=' .. id .. ' ' .. charge.caller }
  end
  account.places[id], account.used, account.changed = known + charge.hits, account.used + charge.hits, true
end

function in_flight.used(account)
  return account.used
end

-- Each call as a log writes its hits. The sum in it is not used here.
function in_flight.entries(account)
  local callers, calls = {}, {}
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', account.key, '-inf', '(0')) do
    local id, caller = string.match(member, '^=(%x+)( .+)$')
    if id then callers[id] = caller end
  end
  for _, place in ipairs(places_of(account, account.used)) do
    local id, call = string.match(place[2], '^%x+'), calls[#calls]
    if not call or call.id ~= id then
      call = { id = id, deadline = place[1], hits = 0 }
      calls[#calls + 1] = call
    end
    call.hits = call.hits + 1
  end
  for i, call in ipairs(calls) do
    calls[i] = text(call.deadline) .. ' 0 ' .. call.hits .. (callers[call.id] or '')
  end
  return calls
end

function in_flight.remaining(account, charge)
  return charge.limit - account.used
end

function in_flight.ends(account)
  local newest, last = redis.call('ZRANGE', account.key, -account.gone_count - 1, -1, 'WITHSCORES'), account.deadline or now
  for i = 1, #newest, 2 do
    if not account.gone[newest[i]] then last = math.max(last, tonumber(newest[i + 1])) end
  end
  return last
end

-- Only a denied call needs it, and that has added nothing.
function in_flight.admits_at(account, hits, charge)
  local surplus = account.used + hits - charge.limit
  local place = hits <= charge.limit and surplus > 0 and places_of(account, surplus)[surplus]
  return place and place[1] or in_flight.ends(account)
end

-- The set is never empty in between: in a hash slot that is being moved, an empty one could not be filled again.
function in_flight.write(account)
  if not account.changed then return end
  local key, expiry = account.key, text(in_flight.ends(account))
  for _, added in ipairs(account.added) do redis.call('ZADD', key, added[1], added[2]) end
  local expiring = account.deadline and redis.pcall('PEXPIREAT', key, expiry)
  if type(expiring) == 'table' then
    -- The user may not: no key stays without an expiry.
    for _, added in ipairs(account.added) do redis.pcall('ZREM', key, added[2]) end
    error(expiring)
  end
  for member in pairs(account.gone) do redis.call('ZREM', key, member) end
  -- What has expired is gone even if the clock is set back, and never a reason to refuse a call.
  redis.pcall('ZREMRANGEBYSCORE', key, '-' .. text(now), text(now))
end
