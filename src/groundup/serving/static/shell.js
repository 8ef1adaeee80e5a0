// Shared by all pages: theme button, navigation, requests with readable errors, and building
// elements from text, never from markup.

const TOKEN_KEY = "groundup-token";

/** A failed request, with a message to show to the user. */
export class RequestProblem extends Error {
  constructor(message, status = 0, code = null) {
    super(message);
    this.name = "RequestProblem";
    this.status = status;
    this.code = code;
  }
}

/** element("p", { className: "x", dataset: { id: 1 } }, "text", child): text is never parsed as
 *  markup; children that are null, undefined or false are skipped. */
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

/** fetch from this server; throws RequestProblem for error responses and lost connections.
 *  On 401 it asks the user for the token and keeps it for this tab. */
export async function request(path, options = {}) {
  const response = await send(path, options);
  if (response.status === 401) {
    const hadToken = sessionStorage.getItem(TOKEN_KEY) !== null;
    sessionStorage.removeItem(TOKEN_KEY);
    const token = await askForToken(hadToken);
    if (token === null) throw new RequestProblem("This server requires a token.", 401);
    sessionStorage.setItem(TOKEN_KEY, token);
    return request(path, options);
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

/** The message to show for any exception. */
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

/** 0.4216 -> "42.2%", 0.0001 -> "<0.1%". */
export function formatProbability(value) {
  if (value > 0 && value < 0.0005) return "<0.1%";
  const percent = value * 100;
  return `${percent.toFixed(percent >= 99.95 ? 0 : 1)}%`;
}

// Browsers resolve light-dark() only in a property of an element.
const probe = document.head.appendChild(element("meta"));

/** The current value of a color in pages.css, for plots: themeColor("accent"). */
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
      "The server does not respond. Check that groundup serve is running, and try again.",
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

// Concurrent 401 responses share one dialog.
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
  const hint = element("p", { className: "hint" }, "Stored only in this tab, until it is closed.");
  const use = element("button", { className: "button primary", value: "use" }, "Use token");
  const dialog = element(
    "dialog",
    { className: "dialog", "aria-labelledby": "server-token-title" },
    element(
      "form",
      { method: "dialog", className: "stack" },
      element("h2", { id: "server-token-title" }, "This server requires a token"),
      wasWrong && element("p", { className: "alert", role: "alert" }, "The token is not valid."),
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

/** A value from localStorage; null if there is none or storage is disabled. */
export function recall(name) {
  try {
    return localStorage.getItem(`groundup-${name}`);
  } catch {
    return null;
  }
}

/** Stores a value in localStorage; false if it is full or disabled. */
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
