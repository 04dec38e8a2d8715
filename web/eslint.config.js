import js from "@eslint/js";
import ts from "typescript-eslint";

export default ts.config(
  { ignores: ["node_modules", "*.mjs", "eslint.config.js"] },
  js.configs.recommended,
  ...ts.configs.strictTypeChecked,
  { languageOptions: { parserOptions: { projectService: true } } },
  { rules: { "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }] } },
);
