-- A window that opens at its first hit: 'used end' at one key, the end in Unix milliseconds.
local first_hit_window = {}
ALGORITHMS.fh = first_hit_window

function first_hit_window.read(charge)
  local value = read_text(charge.key)
  if not value then return value == nil and { key = charge.key, used = 0, stop = 0 } or nil end
  local used, stop = string.match(value, '^(%d+) (%d+)$')
  used, stop = count(used), count(stop)
  if not used or not stop or stop > now + charge.window + MAX_AHEAD_MS then return nil end
  if stop <= now then used, stop = 0, 0 end
  -- A window that ends later was opened while the clock was ahead.
  local latest = now + charge.window
  return { key = charge.key, used = used, stop = math.min(stop, latest), changed = stop > latest }
end

function first_hit_window.refund(account, hits)
  account.changed = account.stop > 0
  account.used = math.max(0, account.used - hits)
end

function first_hit_window.give_back(account, hits, charge)
  if charge.made >= account.stop or charge.made < account.stop - charge.window then return end
  account.changed = true
  account.used = given_back(account.used, hits)
end

function first_hit_window.fits(account, hits, charge)
  return account.used + hits <= charge.limit
end

function first_hit_window.charge(account, charge)
  account.changed = true
  account.used = math.min(account.used + charge.hits, COUNT_MAX)
  account.stop = first_hit_window.ends(account, charge)
end

function first_hit_window.used(account)
  return account.used
end

function first_hit_window.remaining(account, charge)
  return charge.limit - account.used
end

function first_hit_window.ends(account, charge)
  return account.stop > 0 and account.stop or now + charge.window
end

function first_hit_window.write(account)
  if not account.changed then return end
  local value = text(account.used) .. ' ' .. text(account.stop)
  redis.call('SET', account.key, value, 'PXAT', text(account.stop))
end
