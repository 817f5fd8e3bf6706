// A Bot API server that somebody else wrote (npm telegram-test-api), for as long as stdin stays open.
import { appendFileSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'

const [place, port, methods] = process.argv.slice(2)
const TelegramServer = createRequire(place + '/')('telegram-test-api')
const server = new TelegramServer({ port: Number(port), host: '127.0.0.1', storeTimeout: 600 })
await server.start()
writeFileSync(methods, '')
server.server.on('request', (request) => {
  const method = /^\/bot[^/]+\/(\w+)/.exec(request.url)?.[1]
  if (method) appendFileSync(methods, method + '\n')
})
console.log('ready')
process.stdin.resume()
process.stdin.on('end', async () => { await server.stop(); process.exit(0) })
