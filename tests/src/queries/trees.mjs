// Reads [{language, text}, …] from stdin and writes the syntax tree of each by Grafana's own grammars, which are what
// its query editors run on. The argument is the folder that set-up links as .fresco/grammars.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const folder = pathToFileURL(`${process.argv[2]}/node_modules/@grafana/`);
const grammar = async (name) => (await import(new URL(`${name}/index.es.js`, folder))).parser;
const parsers = { traceql: await grammar("lezer-traceql"), logql: await grammar("lezer-logql") };

function tree(node, text) {
  const children = [];
  for (let child = node.firstChild; child; child = child.nextSibling) children.push(tree(child, text));
  return { name: node.type.name, error: node.type.isError, text: text.slice(node.from, node.to), children };
}

const queries = JSON.parse(readFileSync(0, "utf8"));
const trees = queries.map(({ language, text }) => tree(parsers[language].parse(text).topNode, text));
process.stdout.write(JSON.stringify(trees));
