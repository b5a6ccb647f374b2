-- A bucket that refills at an even rate (GCRA): 'debt at' at one key. The debt is what the bucket
-- lacks, in hits times the window's milliseconds: a hit adds the window, and each millisecond pays
-- back the limit.
local token_bucket = {}
ALGORITHMS.tb = token_bucket

function token_bucket.read(charge)
  local value = read_text(charge.key)
  if not value then return value == nil and { key = charge.key, debt = 0, at = now } or nil end
  local debt, at = string.match(value, '^(%d+) (%d+)$')
  debt, at = count(debt), count(at)
  if not debt or not at or at > now + MAX_AHEAD_MS then return nil end
  local paid = math.max(0, now - at) * charge.limit
  -- The clock was ahead by more than a window; from now on the debt is paid.
  local is_ahead = at > now + charge.window
  at = is_ahead and now or math.max(at, now)
  return { key = charge.key, debt = math.max(0, debt - paid), at = at, changed = is_ahead }
end

function token_bucket.refund(account, hits, charge)
  account.changed = account.changed or account.debt > 0
  account.debt = math.max(0, account.debt - hits * charge.window)
end

-- What has been refilled since is not given back: the bucket could have been full without the reservation.
function token_bucket.give_back(account, hits, charge)
  local refilled = math.max(0, account.at - charge.made) * charge.limit
  local owed = hits * charge.window - refilled
  -- A debt that has stopped at its maximum has lost hits of others.
  if account.debt == 0 or owed <= 0 or account.debt + refilled >= COUNT_MAX then return end
  account.changed = true
  account.debt = math.max(0, account.debt - owed)
end

function token_bucket.fits(account, hits, charge)
  return account.debt + hits * charge.window <= charge.burst * charge.window
end

function token_bucket.charge(account, charge)
  account.changed = true
  account.debt = math.min(account.debt + charge.hits * charge.window, COUNT_MAX)
end

function token_bucket.used(account, charge)
  return div_ceil(account.debt, charge.window)
end

function token_bucket.remaining(account, charge)
  return div_floor(charge.burst * charge.window - account.debt, charge.window)
end

local function paid_at(account, debt, charge)
  if charge.limit == 0 then return account.at + charge.window end
  return account.at + div_ceil(debt, charge.limit)
end

function token_bucket.ends(account, charge)
  return account.debt > 0 and paid_at(account, account.debt, charge) or now
end

function token_bucket.admits_at(account, hits, charge)
  if hits > charge.burst then return token_bucket.ends(account, charge) end
  return paid_at(account, account.debt + (hits - charge.burst) * charge.window, charge)
end

function token_bucket.write(account, charge)
  if not account.changed then return end
  -- One window longer than it counts: a limit that is lowered meanwhile makes it count longer.
  local paid = account.debt > 0 and paid_at(account, account.debt, charge) or account.at
  local expiry = math.min(paid + charge.window, account.at + MAX_AHEAD_MS)
  redis.call('SET', account.key, text(account.debt) .. ' ' .. text(account.at), 'PXAT', text(expiry))
end
