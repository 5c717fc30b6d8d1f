// What a person without a mouse or with a screen reader would stumble over, as a list of sentences. A short check of our own;
// it knows names, roles, headings, identifiers and contrast.
const faults = [];
const seen = (element) => {
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  return box.width > 0 && box.height > 0 && style.visibility !== "hidden" && style.display !== "none";
};
const say = (element) => `<${element.tagName.toLowerCase()}${element.id ? "#" + element.id : ""}${[...element.classList].map((name) => "." + name).join("")}>`;
const nameOf = (element) => {
  const labelled = element.getAttribute("aria-labelledby");
  if (labelled) return labelled.split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join(" ").trim();
  const label = element.id && document.querySelector(`label[for="${CSS.escape(element.id)}"]`);
  return (element.getAttribute("aria-label") ?? label?.textContent ?? element.closest("label")?.textContent ?? element.textContent ?? "").trim() || element.getAttribute("alt") || element.getAttribute("title") || "";
};

for (const element of document.querySelectorAll("a[href], button, input, select, textarea, dialog, nav, [role=tab], [role=table], [role=application], [role=meter], svg[role=img]")) {
  if (seen(element) && !nameOf(element)) faults.push(`${say(element)} has no name`);
}
for (const image of document.querySelectorAll("img")) if (!image.hasAttribute("alt")) faults.push(`${say(image)} has no alternative text`);
for (const element of document.querySelectorAll("[onclick]")) faults.push(`${say(element)} has an inline listener`);
for (const element of document.querySelectorAll("[tabindex]")) if (element.tabIndex > 0) faults.push(`${say(element)} changes the order of the focus`);

if (!document.documentElement.lang) faults.push("the page names no language");
if (!document.title) faults.push("the page has no title");
if ([...document.querySelectorAll("h1")].filter(seen).length !== 1) faults.push("there is not one h1");
if (document.querySelectorAll("main").length !== 1) faults.push("there is not one main");
const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at))) faults.push(`#${id} is there twice`);
for (const [name, needed] of [["aria-controls", document], ["aria-activedescendant", document]]) {
  for (const element of document.querySelectorAll(`[${name}]`)) {
    const id = element.getAttribute(name);
    if (id && !needed.getElementById(id)) faults.push(`${say(element)} ${name}: there is no #${id}`);
  }
}
for (const [child, parents] of [["row", "table, rowgroup"], ["cell", "row"], ["rowheader", "row"], ["columnheader", "row"], ["tab", "tablist"], ["option", "listbox"]]) {
  for (const element of document.querySelectorAll(`[role=${child}]`)) {
    if (!parents.split(", ").includes(element.parentElement?.closest("[role]:not([role=presentation])")?.getAttribute("role") ?? "")) faults.push(`${say(element)} is a ${child} without ${parents}`);
  }
}

// WCAG's contrast: 4.5 to 1, of large text 3 to 1.
const parse = (text) => { const parts = text.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0]; return parts.length === 3 ? [...parts, 1] : parts; };
const over = (top, below) => [0, 1, 2].map((at) => top[at] * top[3] + below[at] * (1 - top[3])).concat(1);
const behind = (element) => {
  const layers = [];
  for (let at = element; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
  return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
};
const light = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((value) => value / 255).map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const walker = document.createTreeWalker(document.querySelector("dialog[open]") ?? document.body, NodeFilter.SHOW_TEXT);
const told = new Set();
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || !element || !seen(element) || element.closest("svg, [aria-hidden=true], noscript, script, .skip")) continue;
  const style = getComputedStyle(element);
  if (element.closest("button:disabled")) continue;
  const background = behind(element), colour = over(parse(style.color), background);
  const [one, other] = [light(colour), light(background)].sort((a, b) => b - a);
  const ratio = (one + 0.05) / (other + 0.05);
  const size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  const key = `${say(element)} ${style.color} on ${background.map(Math.round)}`;
  if (ratio < (isLarge ? 3 : 4.5) && !told.has(key)) {
    told.add(key);
    faults.push(`${key}: contrast ${ratio.toFixed(2)}`);
  }
}
return faults;
