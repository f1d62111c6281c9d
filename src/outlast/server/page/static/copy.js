// Buttons that copy a text, and say that they have.

export async function copy(button, text) {
  const said = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    const area = Object.assign(document.createElement("textarea"), { value: text });
    (button.closest("dialog") ?? document.body).append(area);
    area.select();
    button.textContent = document.execCommand("copy") ? "Copied" : "Select and copy";
    area.remove();
  }
  setTimeout(() => { button.textContent = said; }, 1500);
}

export function copyButtons() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button, button.dataset.copy);
  });
}
