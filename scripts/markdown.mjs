// Parses documents in Markdown: lines, code, headings and sections.

/** Returns lines with their numbers and the language of their fence, `null` outside fences. */
export function linesOf(text) {
  let fence = null;
  return text.split("\n").map((line, index) => {
    const mark = line.match(/^\s*```(\S*)/);
    if (mark) {
      fence = fence === null ? mark[1] : null;
      return { number: index + 1, line: "", fence: "mark" };
    }
    return { number: index + 1, line, fence };
  });
}

/** Returns code spans, which may wrap, and each line of a fence of shell commands. */
export function codeOf(text) {
  const lines = linesOf(text);
  const shell = lines.filter(({ fence }) => fence === "sh").map(({ number, line }) => ({ number, code: line.trim(), isShell: true }));
  const prose = lines.map(({ line, fence }) => (fence === null ? line : "")).join("\n");
  const spans = [...prose.matchAll(/`((?:[^`\n]|\n(?!\s*\n))+)`/g)].map((match) => ({
    number: prose.slice(0, match.index).split("\n").length,
    code: match[1].replace(/\s*\n\s*/g, " "),
    isShell: false,
  }));
  return [...spans, ...shell];
}

/** Returns the headings of a document, with their lines' numbers and their anchors as GitHub generates them. */
export function headingsOf(text) {
  const seen = new Map();
  return linesOf(text).filter(({ fence }) => fence === null).flatMap(({ number, line }) => {
    const heading = line.match(/^#{1,6}\s+(.*?)\s*#*$/);
    if (!heading) return [];
    const words = heading[1].replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").replace(/`/g, "").toLowerCase();
    const slug = words.replace(/[^\p{L}\p{N}\s_-]/gu, "").replace(/\s/g, "-");
    const count = seen.get(slug) ?? 0;
    seen.set(slug, count + 1);
    return [{ number, anchor: count === 0 ? slug : `${slug}-${count}` }];
  });
}

export const anchorsOf = (text) => new Set(headingsOf(text).map(({ anchor }) => anchor));

/** Returns the text from the heading with this anchor to the next heading. */
export function sectionOf(text, anchor) {
  const headings = headingsOf(text);
  const at = headings.findIndex((heading) => heading.anchor === anchor);
  if (at < 0) return "";
  return text.split("\n").slice(headings[at].number, headings[at + 1] && headings[at + 1].number - 1).join("\n");
}
