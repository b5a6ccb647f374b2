-- The time of every hit that still counts: a list, the oldest first, of 'at sum hits caller'. The sum
-- covers all hits since the list began, so that no walk is needed to know what is used; `at` is in Unix
-- milliseconds and never before the entry in front; the caller may be missing.
local sliding_log = {}

-- Number of the newest entries among which a give-back looks for its own: the later ones are written again.
local SEARCHED_MAX = 257
ALGORITHMS.sl = sliding_log

local function log_entry(key, index)
  local value = redis.pcall('LINDEX', key, index)
  local at, sum, hits, rest = string.match(type(value) == 'string' and value or '', '^(%d+) (%d+) (%d+)(.*)$')
  at, sum, hits = count(at), count(sum), count(hits)
  -- A sum that we write stays far below 2^52: that many hits take a log ten thousand years.
  local ours = at and sum and hits and hits > 0 and hits <= sum and sum < 4503599627370496
    and at <= now + MAX_AHEAD_MS and (rest == '' or string.find(rest, '^ %S+$'))
  return ours and { at = at, sum = sum, hits = hits, rest = rest } or nil
end

-- The entry at an index; the last one may have changed since it was read.
local function entry_of(account, index)
  return account.last and index == account.length - 1 and account.last or log_entry(account.key, index)
end

-- Binary search: the first index from `from` to before `to` whose entry is `wanted`, in a list where all
-- later entries are wanted too; `to` if there is none; nil if an entry cannot be read.
local function log_search(account, from, to, wanted)
  while from < to do
    local middle = math.floor((from + to) / 2)
    local entry = entry_of(account, middle)
    if not entry then return nil end
    if wanted(entry) then to = middle else from = middle + 1 end
  end
  return from
end

local function caller_text(charge)
  return charge.caller ~= '' and ' ' .. charge.caller or ''
end

-- Makes one entry, of now, of those that lie more than a window ahead: the clock was ahead when they were charged.
-- Returns whether they can be read.
local function set_back(account, charge)
  local newest, latest = account.last, now + charge.window
  if newest.at <= latest then return true end
  local place = log_search(account, account.first, account.length, function(entry) return entry.at > latest end)
  local oldest = place and entry_of(account, place)
  local before = place and place > account.first and log_entry(account.key, place - 1)
  if not oldest or before == nil then return false end
  account.length, account.rewritten, account.changed = place + 1, { newest }, true
  newest.hits = newest.sum - (oldest.sum - oldest.hits)
  newest.at = math.max(now, before and before.at or 0)
  return true
end

-- `rewritten` are the last of the `length` entries, as far as they differ from the `stored` ones at their places;
-- `pushed` follow them.
function sliding_log.read(charge)
  local length = redis.pcall('LLEN', charge.key)
  if type(length) == 'table' then return nil end
  local account = { key = charge.key, stored = length, length = length, used = 0, base = 0, rewritten = {}, pushed = {} }
  account.first = log_search(account, 0, length, function(entry)
    return entry.at + charge.window > now
  end)
  if not account.first then return nil end
  if account.first < length then
    local oldest, newest = log_entry(charge.key, account.first), log_entry(charge.key, -1)
    if not oldest or not newest then return nil end
    account.last, account.base = newest, oldest.sum - oldest.hits
    account.used = newest.sum - account.base
    -- Each entry has a hit of its own.
    if account.used < length - account.first or not set_back(account, charge) then return nil end
  end
  return account
end

function sliding_log.refund(account, hits)
  local sum = account.base + math.max(0, account.used - hits)
  local place = log_search(account, account.first, account.length, function(entry) return entry.sum > sum end)
  -- A log with an entry that cannot be read is somebody else's.
  if not place or place == account.length then return end
  local entry = entry_of(account, place)
  entry.hits, entry.sum = entry.hits - (entry.sum - sum), sum
  account.changed, account.used = true, sum - account.base
  if entry.hits > 0 then
    account.length, account.rewritten, account.last = place + 1, { entry }, entry
  else
    account.length, account.rewritten = place, {}
    account.last = place > account.first and log_entry(account.key, place - 1) or nil
  end
end

-- Hits at the same time and of the same caller are alike, so the newest of them are given back.
function sliding_log.give_back(account, hits, charge)
  local rest, lowest = caller_text(charge), math.max(account.first, account.length - SEARCHED_MAX)
  local index, owed, sum, found = account.length, hits, 0, {}
  while index > lowest and owed > 0 do
    local entry = entry_of(account, index - 1)
    if not entry then return end
    if entry.at < charge.made then break end
    index, sum, found[#found + 1] = index - 1, entry.sum - entry.hits, entry
    if entry.at == charge.made and entry.rest == rest then
      local taken = math.min(owed, entry.hits)
      entry.hits, owed = entry.hits - taken, owed - taken
    end
  end
  if owed == hits then return end

  -- What remains of them moves to the places from `index` on, with sums that are lower.
  account.rewritten = {}
  for i = #found, 1, -1 do
    local entry = found[i]
    if entry.hits > 0 then
      sum = sum + entry.hits
      entry.sum = sum
      account.rewritten[#account.rewritten + 1] = entry
    end
  end
  account.changed, account.length, account.used = true, index + #account.rewritten, account.used - (hits - owed)
  account.last = account.rewritten[#account.rewritten]
    or account.length > account.first and log_entry(account.key, account.length - 1) or nil
end

function sliding_log.fits(account, hits, charge)
  return account.used + hits <= charge.limit
end

function sliding_log.charge(account, charge)
  account.changed = true
  local newest = account.pushed[#account.pushed] or account.last
  account.used = account.used + charge.hits
  account.pushed[#account.pushed + 1] = {
    at = math.max(now, newest and newest.at or 0),
    sum = account.base + account.used,
    hits = charge.hits,
    rest = caller_text(charge),
  }
end

function sliding_log.used(account)
  return account.used
end

function sliding_log.entries(account, most)
  return redis.call('LRANGE', account.key, math.max(account.first, account.stored - most), -1)
end

function sliding_log.remaining(account, charge)
  return charge.limit - account.used
end

function sliding_log.ends(account, charge)
  local newest = account.pushed[#account.pushed] or account.last
  return newest and newest.at + charge.window or now
end

-- Only a denied call needs it, and that has pushed nothing.
function sliding_log.admits_at(account, hits, charge)
  local surplus = account.used + hits - charge.limit
  if hits > charge.limit or surplus <= 0 then return sliding_log.ends(account, charge) end
  local place = log_search(account, account.first, account.length, function(entry)
    return entry.sum - account.base >= surplus
  end)
  local entry = place and place < account.length and entry_of(account, place)
  return entry and entry.at + charge.window or sliding_log.ends(account, charge)
end

-- The list is never empty in between: in a hash slot that is being moved, an empty one could not be filled again.
function sliding_log.write(account, charge)
  if not account.changed then return end
  local key, place = account.key, account.length - #account.rewritten
  for _, entry in ipairs(account.pushed) do account.rewritten[#account.rewritten + 1] = entry end
  for _, entry in ipairs(account.rewritten) do
    local value = text(entry.at) .. ' ' .. text(entry.sum) .. ' ' .. text(entry.hits) .. entry.rest
    if place < account.stored then redis.call('LSET', key, place, value) else redis.call('RPUSH', key, value) end
    place = place + 1
  end
  local newest = account.pushed[#account.pushed]
  local expiring = newest and redis.pcall('PEXPIREAT', key, text(newest.at + charge.window))
  if type(expiring) == 'table' then
    -- The user may not: no key stays without an expiry.
    local is_new = account.stored == 0
    local trimmed = redis.pcall('LTRIM', key, is_new and 1 or 0, math.max(0, account.stored - 1))
    if trimmed.err and is_new then redis.pcall('DEL', key) end
    error(expiring)
  end
  -- Unlike RPOP, LTRIM does not reply with all that it removes.
  if place == account.first then
    redis.call('LTRIM', key, 1, 0)
  elseif account.first > 0 or place < account.stored then
    redis.call('LTRIM', key, account.first, place - 1)
  end
end
