// Writes the hash of everything that the page is built from beside the build; --check compares.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const web = dirname(fileURLToPath(import.meta.url));
const stamp = join(web, "../src/hpunet/viewer/static/BUILD");
const files = ["index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts"];
files.push(...readdirSync(join(web, "src")).map((name) => `src/${name}`));
const hash = createHash("sha256");
for (const name of files.sort()) {
  hash.update(`${name}\0`).update(readFileSync(join(web, name))).update("\0");
}
const built = hash.digest("hex");
if (!process.argv.includes("--check")) writeFileSync(stamp, `${built}\n`);
else if (readFileSync(stamp, "utf8").trim() !== built) {
  console.error("the built page is older than web/: run make web and commit src/hpunet/viewer/static");
  process.exit(1);
}
