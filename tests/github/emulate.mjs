// A GitHub that somebody else wrote (npm emulate), for as long as stdin stays open.
import { pathToFileURL } from 'node:url'

const [place, given] = process.argv.slice(2)
const { port, hook, secret, key, permissions, events } = JSON.parse(given)
const { createEmulator } = await import(pathToFileURL(place + '/node_modules/emulate/dist/api.js').href)
const app = {
  app_id: 12345, slug: 'gofer', name: 'gofer', private_key: key, webhook_secret: secret, webhook_url: hook, permissions,
  events, installations: [{ installation_id: 100, account: 'ada', repository_selection: 'all' }],
}
const github = await createEmulator({
  service: 'github', port,
  seed: {
    github: { users: [{ login: 'ada' }], repos: [{ owner: 'ada', name: 'widgets', private: true, auto_init: true }], apps: [app] },
    tokens: { 'adas-own-token': { login: 'ada', scopes: ['repo'] } },
  },
})
console.log('ready')
process.stdin.resume()
process.stdin.on('end', async () => { await github.close(); process.exit(0) })
