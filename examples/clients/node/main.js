// Makes a call for each line of stdin, such as user=alice or path=/login,user=alice:
//
//   echo user=alice | node main.js localhost:8081 example ../../../proto [DEADLINE_MS]
'use strict';

const readline = require('node:readline');
const { Limiter } = require('./rate_limit');

function describe({ allowed, failure, limit, remaining, resetSeconds, headers }) {
  const verdict = allowed ? 'allowed' : 'denied';
  if (failure !== undefined) return `${verdict}, no answer`;
  if (!limit) return `${verdict}, no limit`;
  const left = `${remaining} of ${limit} left, resets in ${resetSeconds} s`;
  const added = Object.entries(headers).map(([name, value]) => `; ${name}: ${value}`);
  return `${verdict}, ${left}${added.join('')}`;
}

function descriptor(line) {
  return Object.fromEntries(line.split(',').map((entry) => {
    const [key, ...value] = entry.split('=');
    return [key, value.join('=')];
  }));
}

async function main(address, domain, protos, deadlineMs) {
  const limiter = new Limiter(address, protos, deadlineMs && Number(deadlineMs));
  for await (const line of readline.createInterface({ input: process.stdin })) {
    console.log(describe(await limiter.allow(domain, descriptor(line))));
  }
  limiter.close();
}

main(...process.argv.slice(2));
