// Applies the chosen theme before the first paint; the default is the system's.
// A classic script in the head, because modules run after the first paint.
try {
  document.documentElement.dataset.theme = localStorage.getItem("groundup-theme") ?? "";
} catch {
  // Storage may be disabled.
}
