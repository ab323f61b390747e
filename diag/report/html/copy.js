"use strict";
// A button beside each command. Without scripts a click into the command selects all of it.
for (const block of document.querySelectorAll("pre.command, .runbook pre")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(block.querySelector("code").textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(block);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  block.append(button);
}
// What is folded on the screen is printed, too.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((item) => { item.open = true; }));
// A link may lead into something folded.
addEventListener("hashchange", () => document.getElementById(location.hash.slice(1))?.closest("details")?.setAttribute("open", ""));
