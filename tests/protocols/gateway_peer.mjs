// OpenClaw's reference client, unchanged, against a server of ours: node gateway_peer.mjs URL TOKEN device|plain
import { createHash, generateKeyPairSync, randomUUID, sign } from "node:crypto";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [url, token, how] = process.argv.slice(2);
const require = createRequire(`${process.cwd()}/package.json`);
const load = async (name) => import(pathToFileURL(require.resolve(name)));
const { GatewayClient } = await load("@openclaw/gateway-client");

const pair = generateKeyPairSync("ed25519");
const raw = pair.publicKey.export({ type: "spki", format: "der" }).subarray(-32);
const identity = {
  deviceId: createHash("sha256").update(raw).digest("hex"),
  privateKeyPem: pair.privateKey.export({ type: "pkcs8", format: "pem" }),
  publicKeyPem: pair.publicKey.export({ type: "spki", format: "pem" }),
};
const hostDeps = {
  signDevicePayload: (pem, payload) => sign(null, Buffer.from(payload), pem).toString("base64url"),
  publicKeyRawBase64UrlFromPem: () => raw.toString("base64url"),
};

const gaps = [];
const frames = [];
const events = [];
const waiting = [];
let hellos = 0;

function until(wanted) {
  const found = events.find(wanted);
  return found ? Promise.resolve(found) : new Promise((resolve) => waiting.push([wanted, resolve]));
}

const client = new GatewayClient({
  url,
  token,
  minProtocol: 4,
  maxProtocol: 4,
  deviceIdentity: how === "device" ? identity : null,
  hostDeps,
  onHelloOk: (hello) => {
    hellos += 1;
    frames.push(["HelloOk", hello]);
    onEvent({ event: "hello", payload: { hellos, scopes: hello.auth.scopes } });
  },
  onConnectError: (error) => {
    console.error(`connect: ${error.message}`);
  },
  onGap: (gap) => gaps.push(gap),
  onEvent: (event) => {
    frames.push(["EventFrame", event]);
    onEvent(event);
  },
});

function onEvent(event) {
  events.push(event);
  for (const [wanted, resolve] of waiting) if (wanted(event)) resolve(event);
}

const ended = (runId, state) => (event) =>
  event.event === "chat" && event.payload.runId === runId && event.payload.state === state;
const sessionKey = `agent:gofer:peer-${how}`;
const say = (message, idempotencyKey) => client.request("chat.send", { sessionKey, message, idempotencyKey });

client.start();
await until((event) => event.event === "hello");
const first = randomUUID();
const started = await say("$ echo one two", first);
const answer = await until(ended(first, "final"));

const second = randomUUID();
await say("$ echo begun; sleep 60", second);
await until((event) => JSON.stringify(event).includes("begun"));
const aborted = await client.request("chat.abort", { sessionKey, runId: second });
await until(ended(second, "aborted"));

client.ws.terminate(); // as when the network goes
await until((event) => event.event === "hello" && event.payload.hellos === 2);
const history = await client.request("chat.history", { sessionKey });
const again = await say("$ echo one two", first);
const third = randomUUID();
await say("$ echo three", third);
const last = await until(ended(third, "final"));
const final = await client.request(
  "agent",
  { message: "$ echo four", sessionKey, idempotencyKey: randomUUID() },
  { expectFinal: true },
);
let refused = "";
await client.request("wizard.start", {}).catch((error) => {
  refused = `${error.gatewayCode}: ${error.message}`;
});
await client.stopAndWait();
console.log(
  JSON.stringify({
    started: started.status,
    answer: answer.payload.message.content[0].text,
    aborted: aborted.aborted,
    history: history.messages.map((message) => [message.role, message.content[0].text]),
    again: again.status,
    last: last.payload.message.content[0].text,
    final,
    refused,
    gaps,
    frames,
  }),
);
