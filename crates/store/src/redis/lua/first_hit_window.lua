-- A window that opens at its first hit: 'used end' at one key, the end in Unix milliseconds; if it also ends when
-- nothing was charged for an idle time, 'used end last', the last charge.
local first_hit_window = {}
ALGORITHMS.fh = first_hit_window

-- When the open window closes if nothing more is charged. A counter from before the limit had an idle time does not
-- say when it was charged.
local function closes(account, charge)
  if not charge.idle or account.last == 0 then return account.stop end
  return math.min(account.stop, account.last + charge.idle)
end

local function is_open(account, charge)
  return account.stop > 0 and now < closes(account, charge)
end

function first_hit_window.read(charge)
  local value = read_text(charge.key)
  if not value then return value == nil and { key = charge.key, used = 0, stop = 0, last = 0 } or nil end
  local used, stop, last = string.match(value, '^(%d+) (%d+) ?(%d*)$')
  used, stop, last = count(used), count(stop), last == '' and 0 or count(last)
  if not used or not stop or not last or stop > now + charge.window + MAX_AHEAD_MS then return nil end
  -- A window that ends later was opened while the clock was ahead, and perhaps charged.
  local latest = now + charge.window
  local account = { key = charge.key, used = used, stop = math.min(stop, latest), last = math.min(last, now) }
  account.changed = stop > latest or last > now
  return account
end

function first_hit_window.refund(account, hits, charge)
  if not is_open(account, charge) then return end
  account.changed = true
  account.used = math.max(0, account.used - hits)
end

function first_hit_window.give_back(account, hits, charge)
  if charge.made >= account.stop or charge.made < account.stop - charge.window or not is_open(account, charge) then return end
  account.changed = true
  account.used = given_back(account.used, hits)
end

function first_hit_window.fits(account, hits, charge)
  return first_hit_window.used(account, charge) + hits <= charge.limit
end

function first_hit_window.charge(account, charge)
  if not is_open(account, charge) then account.used, account.stop = 0, now + charge.window end
  account.used, account.changed = math.min(account.used + charge.hits, COUNT_MAX), true
  account.last = charge.idle and math.max(account.last, now) or 0
end

function first_hit_window.used(account, charge)
  return is_open(account, charge) and account.used or 0
end

function first_hit_window.remaining(account, charge)
  return charge.limit - first_hit_window.used(account, charge)
end

function first_hit_window.ends(account, charge)
  return is_open(account, charge) and closes(account, charge) or now + (charge.idle or charge.window)
end

function first_hit_window.write(account, charge)
  if not account.changed then return end
  local value = text(account.used) .. ' ' .. text(account.stop)
  if account.last > 0 then value = value .. ' ' .. text(account.last) end
  redis.call('SET', account.key, value, 'PXAT', text(closes(account, charge)))
end
