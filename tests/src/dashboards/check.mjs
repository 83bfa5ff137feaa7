// Reads [{shape, value}, …] from stdin and writes, for each, the places in it that do not fit the shape of that name in
// shapes.ts. The compiler of TypeScript is the judge. The argument is the folder that set-up links as .fresco/schema.

import { createRequire } from "node:module";
import { readFileSync, realpathSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

// By its real path: the compiler looks for its library beside itself.
const packages = realpathSync(process.argv[2]);
const here = dirname(fileURLToPath(import.meta.url));
const ts = createRequire(import.meta.url)(join(packages, "typescript", "typescript.js"));

const SHAPES = join(here, "shapes.ts");
// Of nothing but text: no such file is there.
const PIECES = join(here, "pieces.ts");
const OPTIONS = {
  strict: true,
  noEmit: true,
  types: [],
  lib: ["lib.es5.d.ts"],
  // The packages' own files name others that nobody fetched; what of ours depends on one fits nothing.
  skipLibCheck: true,
  moduleResolution: ts.ModuleResolutionKind.Bundler,
  module: ts.ModuleKind.ESNext,
  paths: { "@grafana/schema": [join(packages, "schema", "index.d.ts")], "packages/*": [join(packages, "*")] },
};

const pieces = JSON.parse(readFileSync(0, "utf8"));
const declared = pieces.map(
  ({ shape, value }, number) => `const _${number}: Shapes[${JSON.stringify(shape)}] = ${JSON.stringify(value)};\n`,
);
const text = [`import type { Shapes } from "./shapes";\n`, ...declared].join("");

function host() {
  const files = ts.createCompilerHost(OPTIONS);
  const { fileExists, getSourceFile } = files;
  files.fileExists = (name) => name === PIECES || fileExists(name);
  files.getSourceFile = (name, ...rest) =>
    name === PIECES ? ts.createSourceFile(name, text, ...rest) : getSourceFile(name, ...rest);
  return files;
}

// The names and numbers that lead to a node of a literal.
function path(node) {
  const names = [];
  for (let at = node; at.parent; at = at.parent) {
    const isName = ts.isPropertyAssignment(at);
    if (isName) names.unshift(at.name.text);
    if (ts.isArrayLiteralExpression(at.parent)) names.unshift(at.parent.elements.indexOf(at));
  }
  return names.join(".");
}

function deepest(node, position) {
  const within = ts.forEachChild(node, (child) => (child.pos <= position && position < child.end ? child : undefined));
  return within ? deepest(within, position) : node;
}

const words = (diagnostic) => ts.flattenDiagnosticMessageText(diagnostic.messageText, " ").replace(/\s+/g, " ");

const program = ts.createProgram([PIECES], OPTIONS, host());
const judged = program.getSourceFile(PIECES);
const broken = [
  ...program.getOptionsDiagnostics(),
  ...program.getGlobalDiagnostics(),
  ...program.getSyntacticDiagnostics(judged),
  ...program.getSemanticDiagnostics(program.getSourceFile(SHAPES)),
];
if (broken.length) throw new Error(broken.map(words).join("\n"));

const faults = pieces.map(() => []);
for (const diagnostic of program.getSemanticDiagnostics(judged)) {
  // A piece a line, after that of the import.
  const number = judged.getLineAndCharacterOfPosition(diagnostic.start).line - 1;
  faults[number].push(`${path(deepest(judged, diagnostic.start))}: ${words(diagnostic)}`);
}
process.stdout.write(JSON.stringify(faults));
