// Before the first paint: the theme that was chosen here, or that of the system.
"use strict";
{
  const chosen = localStorage.getItem("klamm-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
}
