-- A bucket that refills at an even rate (GCRA): 'debt at' at one key. The debt is what the bucket
-- lacks, in hits times the window's milliseconds: a hit adds the window, and each millisecond pays
-- back the limit.
local token_bucket = {}
ALGORITHMS.tb = token_bucket

function token_bucket.read(charge)
  local value = read_text(charge.key)
  if not value then return value == nil and { key = charge.key, debt = 0, at = 0 } or nil end
  local debt, at = string.match(value, '^(%d+) (%d+)$')
  debt, at = count(debt), count(at)
  if not debt or not at or at > now + MAX_AHEAD_MS then return nil end
  -- The clock was ahead by more than a window; from now on the debt is paid.
  local is_ahead = at > now + charge.window
  return { key = charge.key, debt = debt, at = is_ahead and now or at, changed = is_ahead }
end

-- The debt now, and its time. Limits of one counter may differ, and each pays by its own rate.
local function owed(account, charge)
  local paid = math.max(0, now - account.at) * charge.limit
  return math.max(0, account.debt - paid), math.max(account.at, now)
end

function token_bucket.refund(account, hits, charge)
  local debt, at = owed(account, charge)
  if debt == 0 then return end
  account.debt, account.at, account.changed = math.max(0, debt - hits * charge.window), at, true
end

-- No more than what has not been refilled since: without the hits given back, the bucket would have been full then. If
-- others have charged it meanwhile, at least the held hits count as the debt of that time.
function token_bucket.give_back(account, hits, charge, held)
  local is_last = account.at == charge.made
  local debt, at = owed(account, charge)
  local refilled = math.max(0, at - charge.made) * charge.limit
  local back = math.min(hits * charge.window, is_last and debt or held * charge.window - refilled)
  -- A debt that has stopped at its maximum has lost hits of others.
  if debt == 0 or back <= 0 or debt + refilled >= COUNT_MAX then return end
  account.debt, account.at, account.changed = math.max(0, debt - back), at, true
end

function token_bucket.fits(account, hits, charge)
  return owed(account, charge) + hits * charge.window <= charge.burst * charge.window
end

function token_bucket.charge(account, charge)
  local debt, at = owed(account, charge)
  account.debt, account.at, account.changed = math.min(debt + charge.hits * charge.window, COUNT_MAX), at, true
end

function token_bucket.used(account, charge)
  return div_ceil(owed(account, charge), charge.window)
end

function token_bucket.remaining(account, charge)
  return div_floor(charge.burst * charge.window - owed(account, charge), charge.window)
end

-- When a debt that is `at` its time is paid.
local function paid_at(debt, at, charge)
  if charge.limit == 0 then return at + charge.window end
  return at + div_ceil(debt, charge.limit)
end

function token_bucket.ends(account, charge)
  local debt, at = owed(account, charge)
  return debt > 0 and paid_at(debt, at, charge) or now
end

function token_bucket.admits_at(account, hits, charge)
  if hits > charge.burst then return token_bucket.ends(account, charge) end
  local debt, at = owed(account, charge)
  return paid_at(debt + (hits - charge.burst) * charge.window, at, charge)
end

-- How long a hit may count. One window longer than it does: a limit that is lowered meanwhile makes it count longer.
function token_bucket.lasts(charge)
  return math.min(paid_at(charge.burst * charge.window, 0, charge) + charge.window, MAX_AHEAD_MS)
end

function token_bucket.write(account, charge)
  -- One window longer, as above.
  local paid = account.debt > 0 and paid_at(account.debt, account.at, charge) or account.at
  local expiry = text(math.min(paid + charge.window, account.at + MAX_AHEAD_MS))
  if account.changed then
    redis.call('SET', account.key, text(account.debt) .. ' ' .. text(account.at), 'PXAT', expiry)
  elseif owed(account, charge) > charge.burst * charge.window then
    -- It was lowered, by more than that window has room for.
    redis.pcall('PEXPIREAT', account.key, expiry)
  end
end
