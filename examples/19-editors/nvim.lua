-- Neovim: the language server for YAML files below a directory `policies`.
-- Load it from init.lua: dofile("/path/to/nvim.lua")
vim.api.nvim_create_autocmd("FileType", {
  pattern = "yaml",
  callback = function(args)
    if not args.file:match("policies/") then
      return
    end
    local client = vim.g.koord_policy_client
    if client == nil or vim.lsp.get_client_by_id(client) == nil then
      client = vim.lsp.start_client({ name = "koord-policy", cmd = { "koord-policy", "lsp" } })
      vim.g.koord_policy_client = client
    end
    vim.lsp.buf_attach_client(args.buf, client)
    vim.bo[args.buf].omnifunc = "v:lua.vim.lsp.omnifunc"
    local map = function(key, action) vim.keymap.set("n", key, action, { buffer = args.buf }) end
    map("K", vim.lsp.buf.hover)
    map("gd", vim.lsp.buf.definition)
    map("gr", vim.lsp.buf.references)
    map("<leader>rn", vim.lsp.buf.rename)
  end,
})
