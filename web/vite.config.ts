import { defineConfig } from "vitest/config";

// Relative addresses and no inlined assets: the page works below any path and under a strict Content-Security-Policy.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/hpunet/viewer/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
  },
  test: { environment: "happy-dom" },
});
