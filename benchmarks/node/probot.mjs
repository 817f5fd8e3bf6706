// Probot with a trivial handler for each event that Gofer reads.
import { pathToFileURL } from 'node:url'

const [place, port, secret, privateKey] = process.argv.slice(2)
const { Probot, Server } = await import(pathToFileURL(place + '/node_modules/probot/lib/index.js').href)
const events = ['issues', 'issue_comment', 'pull_request', 'pull_request_review', 'pull_request_review_comment', 'check_suite']
const server = new Server({
  port: Number(port), host: '127.0.0.1', webhookPath: '/hooks',
  Probot: Probot.defaults({ appId: 1, privateKey, secret, logLevel: 'fatal' }),
})
await server.load(app => { app.on(events, async () => {}) })
await server.start()
console.error('ready')
process.stdin.resume()
process.stdin.on('end', () => process.exit(0))
