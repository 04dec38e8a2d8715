// Every control of the page, by name.

import { get } from "./dom";

const button = (id: string): HTMLButtonElement => get(id, HTMLButtonElement);
const input = (id: string): HTMLInputElement => get(id, HTMLInputElement);
const select = (id: string): HTMLSelectElement => get(id, HTMLSelectElement);
const element = (id: string): HTMLElement => get(id, HTMLElement);
const canvas = (id: string): HTMLCanvasElement => get(id, HTMLCanvasElement);

export function findControls() {
  return {
    model: element("model"), disclaimer: element("disclaimer"), banner: element("banner"), status: element("status"),
    progress: element("progress"), progressBar: get("progress-bar", HTMLProgressElement), cases: element("cases"),
    title: element("title"), hint: element("hint"), caption: element("caption"), place: element("place"),
    main: canvas("main"), other: canvas("other"), second: element("second"), otherChoice: select("other-choice"),
    slices: element("slices"), slice: input("slice"), sliceNumber: element("slice-number"), strip: element("strip"),
    planes: button("planes"), planeViews: element("plane-views"), coronal: canvas("coronal"), sagittal: canvas("sagittal"),
    coronalSlice: input("coronal-slice"), coronalNumber: element("coronal-number"),
    sagittalSlice: input("sagittal-slice"), sagittalNumber: element("sagittal-number"),
    number: input("number"), redraw: button("redraw"), flip: button("flip"), sample: input("sample"),
    point: button("point"), warnings: element("warnings"), notes: element("notes"), measures: element("measures"), plot: element("plot"),
    hide: button("hide"), compare: button("compare"), graders: button("graders"), graderNames: element("grader-names"),
    overlay: select("overlay"), legend: element("legend"), legendEnd: element("legend-end"), opacity: input("opacity"),
    low: input("low"), high: input("high"), window: button("window"),
    brush: button("brush"), eraser: button("eraser"), size: input("size"), classChoice: element("class-choice"),
    class: select("class"), undo: button("undo"), redo: button("redo"), clear: button("clear"),
    here: button("here"), from: button("from"), drag: button("drag"), reset: button("reset"), copy: button("copy"),
    instances: element("instances"), instance: element("instance"), latentTools: element("latent-tools"),
    merge: button("merge"), split: button("split"), add: button("add"),
    latents: get("latents", HTMLDetailsElement), scales: element("scales"), temperature: input("temperature"),
    channelChoice: element("channel-choice"), channel: input("channel"),
    scaleMap: select("scale-map"), scaleLegend: element("scale-legend"), scaleLegendEnd: element("scale-legend-end"),
    note: get("note", HTMLTextAreaElement), accept: button("accept"), next: button("next"),
    format: select("format"), export: button("export"), saved: element("saved"), upload: input("upload"),
    help: button("help"), keys: get("keys", HTMLDialogElement), keyTable: element("key-table"),
  };
}

export type Controls = ReturnType<typeof findControls>;
