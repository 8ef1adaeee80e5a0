// The visitor's choice of a theme, before the first paint; without one the system's applies.
// A classic script in the head, since a module would run after the page has shown itself.
try {
  document.documentElement.dataset.theme = localStorage.getItem("groundup-theme") ?? "";
} catch {
  // The browser's settings may refuse storage.
}
