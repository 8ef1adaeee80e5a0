// Sets data-theme before the first paint: the visitor's choice, else the system's wish.
// A classic script in the head, since a module would run after the page has shown itself.
(() => {
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    let choice = null;
    try {
      choice = localStorage.getItem("groundup-theme");
    } catch {
      // Storage may be refused by the browser's settings; the system's wish then stands.
    }
    const theme = choice ?? (systemDark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    document.dispatchEvent(new CustomEvent("groundup:theme", { detail: theme }));
  };
  systemDark.addEventListener("change", apply);
  addEventListener("storage", apply);
  document.addEventListener("groundup:theme-choice", (event) => {
    try {
      localStorage.setItem("groundup-theme", event.detail);
      apply();
    } catch {
      document.documentElement.dataset.theme = event.detail;
    }
  });
  apply();
})();
