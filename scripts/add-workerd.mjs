#!/usr/bin/env node
// Adds workerd, which the edge's program contains, to the Worker's bill of materials.
//
//   node scripts/add-workerd.mjs FILE.cdx.json
import { readFileSync, writeFileSync } from "node:fs";

const [file] = process.argv.slice(2);
const bom = JSON.parse(readFileSync(file, "utf8"));
const { name, version, license } = JSON.parse(readFileSync("node_modules/workerd/package.json", "utf8"));
const purl = `pkg:npm/${name}@${version}`;
bom.components.push({
  type: "application",
  "bom-ref": purl,
  name,
  version,
  description: "the runtime of the Worker",
  licenses: [{ license: { id: license } }],
  purl,
});
bom.dependencies.find(({ ref }) => ref === bom.metadata.component["bom-ref"]).dependsOn.push(purl);
bom.dependencies.push({ ref: purl });
writeFileSync(file, `${JSON.stringify(bom, null, 2)}\n`);
