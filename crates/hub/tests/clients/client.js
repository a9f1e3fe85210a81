// The stock client, unchanged: does what it is told by lines of its input, and tells what happens by
// lines of its output. Arguments: URL, transport, protocol, package, "stateful" or "unnegotiated".
const readline = require("readline");

const [url, transport, protocol, library, option] = process.argv.slice(2);
const signalr = require(library || "@microsoft/signalr");

const tell = (event, more) => console.log(JSON.stringify({ event, ...more }));
const text = (error) => (error ? String(error.message || error) : null);

let token = "";
const builder = new signalr.HubConnectionBuilder()
  .withUrl(url, {
    accessTokenFactory: () => token,
    transport: signalr.HttpTransportType[transport],
    skipNegotiation: option === "unnegotiated",
  })
  .withAutomaticReconnect(Array(200).fill(50))
  .configureLogging(signalr.LogLevel.None);
if (protocol === "messagepack") {
  const { MessagePackHubProtocol } = require("@microsoft/signalr-protocol-msgpack");
  builder.withHubProtocol(new MessagePackHubProtocol());
}
if (option === "stateful") builder.withStatefulReconnect();
const connection = builder.build();

const told = (method) => (...args) => tell("message", { method, args });
connection.on("notify", (...args) => { told("notify")(...args); });
connection.on("ask", (...args) => { told("ask")(...args); return { seen: true }; });
connection.on("hold", (...args) => { told("hold")(...args); return new Promise(() => {}); });
connection.on("boom", (...args) => { told("boom")(...args); throw new Error("on purpose"); });
connection.onreconnecting((error) => tell("reconnecting", { error: text(error) }));
connection.onreconnected((id) => tell("reconnected", { id }));
connection.onclose((error) => tell("closed", { error: text(error) }));

const orders = {
  token: (value) => { token = value; },
  start: () => connection.start().then(
    () => tell("started", { id: connection.connectionId }),
    (error) => tell("failed", { error: text(error) })),
  invoke: (call) => connection.invoke(...call).then(
    (result) => tell("result", { result }),
    (error) => tell("failed", { error: text(error) })),
  stop: () => connection.stop().then(() => tell("stopped")),
};
readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const order = JSON.parse(line);
  for (const [name, value] of Object.entries(order)) orders[name](value);
});
