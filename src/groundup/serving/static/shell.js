// What every page needs: the theme button, the current link, requests that answer in words, and
// building elements by textContent so that no text can become markup.

const TOKEN_KEY = "groundup-token";

/** A request that failed, with a message meant for the reader. */
export class RequestProblem extends Error {
  constructor(message, status = 0, code = null) {
    super(message);
    this.name = "RequestProblem";
    this.status = status;
    this.code = code;
  }
}

/** element("p", { className: "x", dataset: { id: 1 } }, "text", child): text is never markup;
 *  null, undefined and false among the children are left out. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "dataset") Object.assign(made.dataset, value);
    else if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  const isLeftOut = (child) => child === null || child === undefined || child === false;
  made.append(...children.filter((child) => !isLeftOut(child)));
  return made;
}

/** fetch on our own server; a refusal or a lost connection becomes a RequestProblem.
 *  On 401 the visitor is asked for the server's token, which this tab then remembers. */
export async function request(path, options = {}) {
  const response = await send(path, options);
  if (response.status === 401) {
    const hadToken = sessionStorage.getItem(TOKEN_KEY) !== null;
    sessionStorage.removeItem(TOKEN_KEY);
    const token = await askForToken(hadToken);
    if (token === null) throw new RequestProblem("This server needs a token.", 401);
    sessionStorage.setItem(TOKEN_KEY, token);
    return request(path, options);
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

/** The words to show for anything that was thrown. */
export function readProblem(error) {
  if (error instanceof RequestProblem) return error.message;
  return `Something went wrong in this page: ${error?.message ?? error}`;
}

export function formatCount(value) {
  return Math.round(value).toLocaleString("en");
}

/** "1 token", "3 tokens". */
export function countOf(number, singular) {
  return `${formatCount(number)} ${singular}${number === 1 ? "" : "s"}`;
}

/** 0.4216 -> "42.2%"; what would round to nothing says so. */
export function formatProbability(value) {
  if (value > 0 && value < 0.0005) return "<0.1%";
  const percent = value * 100;
  return `${percent.toFixed(percent >= 99.95 ? 0 : 1)}%`;
}

// light-dark() is resolved only in a property that is in use.
const probe = document.head.appendChild(element("meta"));

/** The current value of a colour of pages.css, for plots: themeColor("accent"). */
export function themeColor(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

const systemDark = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : systemDark.matches;
}

export function onThemeChange(callback) {
  document.addEventListener("groundup:theme", callback);
}

async function send(path, options) {
  const headers = new Headers(options.headers);
  const token = sessionStorage.getItem(TOKEN_KEY);
  if (token !== null) headers.set("Authorization", `Bearer ${token}`);
  try {
    return await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestProblem(
      "The server does not answer. Is groundup serve still running? Start it and try again.",
    );
  }
}

async function problemOf(response) {
  const body = await response.json().catch(() => ({}));
  let message = body.error?.message ?? `The server answered ${response.status}.`;
  const waitSeconds = response.headers.get("Retry-After");
  if (response.status === 429 && waitSeconds) message += ` Try again in ${waitSeconds} s.`;
  return new RequestProblem(message, response.status, body.error?.code ?? null);
}

// Several requests may be refused at once: they share one question.
let pendingQuestion = null;

function askForToken(wasWrong) {
  pendingQuestion ??= openTokenDialog(wasWrong).finally(() => {
    pendingQuestion = null;
  });
  return pendingQuestion;
}

function openTokenDialog(wasWrong) {
  const input = element("input", { id: "server-token", type: "password", autocomplete: "off" });
  const label = element("label", { className: "field-label", htmlFor: "server-token" }, "Token");
  const hint = element("p", { className: "hint" }, "Kept in this tab alone, until it is closed.");
  const use = element("button", { className: "button primary", value: "use" }, "Use token");
  const dialog = element(
    "dialog",
    { className: "dialog", "aria-labelledby": "server-token-title" },
    element(
      "form",
      { method: "dialog", className: "stack" },
      element("h2", { id: "server-token-title" }, "This server needs a token"),
      wasWrong && element("p", { className: "alert", role: "alert" }, "That token was refused."),
      element("div", { className: "field" }, label, input, hint),
      use,
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const token = dialog.returnValue === "use" ? input.value.trim() : "";
      dialog.remove();
      resolve(token || null);
    });
  });
}

/** What this browser keeps under a name; its settings may refuse to keep anything. */
export function recall(name) {
  try {
    return localStorage.getItem(`groundup-${name}`);
  } catch {
    return null;
  }
}

/** Keeps a text under a name; whether the browser has room and allows it. */
export function remember(name, text) {
  try {
    localStorage.setItem(`groundup-${name}`, text);
    return true;
  } catch {
    return false;
  }
}

function markCurrentLink() {
  const view = location.hash.startsWith("#tokenizer") ? "#tokenizer" : "#playground";
  const here = location.pathname === "/" ? `/${view}` : location.pathname;
  for (const link of document.querySelectorAll(".site-nav a")) {
    if (link.getAttribute("href") === here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

const themeButton = document.getElementById("theme-button");

function nameThemeButton() {
  themeButton.ariaLabel = themeButton.title = `Switch to the ${isDark() ? "light" : "dark"} theme`;
  document.dispatchEvent(new Event("groundup:theme"));
}

themeButton.addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  remember("theme", theme);
  nameThemeButton();
});
systemDark.addEventListener("change", nameThemeButton);
addEventListener("hashchange", markCurrentLink);
markCurrentLink();
nameThemeButton();
