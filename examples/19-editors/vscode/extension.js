// Starts `koord-policy lsp` for the files that are policies.
const { workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

exports.activate = function () {
  const settings = workspace.getConfiguration("koordPolicy");
  const server = { command: settings.get("command"), args: ["lsp"] };
  client = new LanguageClient("koordPolicy", "koord-policy", server, {
    documentSelector: [{ scheme: "file", language: "yaml", pattern: settings.get("files") }],
  });
  return client.start();
};

exports.deactivate = function () {
  return client && client.stop();
};
