-- The operations of redis_store.py; each runs alone. KEYS[1] is the prefix of all keys, so that
-- fleets may share a Redis; keys are made of it here, which a Redis cluster would not allow.
-- ARGV[1] is how long anything lives at most, ARGV[2] the operation; its arguments follow.
-- Times are in milliseconds.

local fleet = KEYS[1]
local here, question = fleet .. 'here', fleet .. 'question'
local day = ARGV[1]

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function stay_present(number, for_ms)
  redis.call('ZADD', here, now() + for_ms, number)
  redis.call('PEXPIRE', here, day)
end

local function question_for(number)
  local fields = redis.call('HMGET', question, 'name', 'kind', 'shared', number)
  if not fields[4] then return false end
  fields[5] = redis.call('PTTL', question)
  return fields
end

local operations = {}

function operations.present()
  redis.call('ZREMRANGEBYSCORE', here, '-inf', now())
  return redis.call('ZRANGE', here, 0, -1)
end

function operations.withdraw(name)
  if redis.call('HGET', question, 'name') == name then redis.call('DEL', question) end
  return redis.call('DEL', fleet .. 'outcomes:' .. name)
end

function operations.sign_in(number, token, alive, nonce, nonce_ms)
  if not redis.call('SET', fleet .. 'sign-in:' .. nonce, 1, 'PX', nonce_ms, 'NX') then return 0 end
  local old = redis.call('GET', fleet .. 'token-of:' .. number)
  if old then redis.call('DEL', fleet .. 'token:' .. old) end
  redis.call('SET', fleet .. 'token-of:' .. number, token, 'PX', day)
  redis.call('SET', fleet .. 'token:' .. token, number, 'PX', day)
  stay_present(number, alive)
  return 1
end

function operations.sign_out(token)
  local number = redis.call('GETDEL', fleet .. 'token:' .. token)
  if number then redis.call('ZREM', here, number) end
end

function operations.who(token, alive)
  local number = redis.call('GET', fleet .. 'token:' .. token)
  if number then stay_present(number, alive) end
  return number
end

function operations.asked(number, connection, wait)
  local fields = question_for(number)
  if not fields and connection ~= '' then
    redis.call('SET', fleet .. 'waits:' .. number, connection, 'PX', wait)
    stay_present(number, wait)
  end
  return fields
end

-- Only on the newest connection: one that dies does not affect a device that waits on another, at
-- any front end.
function operations.waited(number, connection, alive)
  if redis.call('GET', fleet .. 'waits:' .. number) == connection then
    redis.call('DEL', fleet .. 'waits:' .. number)
    if redis.call('ZSCORE', here, number) then stay_present(number, alive) end
  end
  return question_for(number)
end

function operations.answer(number, name, outcome)
  local outcomes = fleet .. 'outcomes:' .. name
  if redis.call('HGET', question, 'name') ~= name then return 0 end
  if redis.call('HDEL', question, number) == 0 then return 0 end
  redis.call('RPUSH', outcomes, outcome)
  redis.call('PEXPIRE', outcomes, redis.call('PTTL', question))
  return 1
end

return operations[ARGV[2]](unpack(ARGV, 3))
