local time = redis.call('TIME')
