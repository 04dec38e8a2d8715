// The page: connects controls, keys and the mouse with the case on the screen.

import { Api, Lost, Refused, type CaseSummary, type Session } from "./api";
import { OpenCase, type ScaleMapWish } from "./case";
import { css, distinct, heat } from "./colours";
import { findControls, type Controls } from "./controls";
import { make, percent, refill, short } from "./dom";
import { Editing } from "./editing";
import type { Event as CaseEvent } from "./history";
import { InstanceTools } from "./instanceTools";
import { colourNumbers, colourOf, keepColours } from "./instances";
import { commandOf, keyRows, type Command } from "./keys";
import { cellAt, middleOf, nameOf, Newest, type Box, type ScaleMapKind } from "./latents";
import { addressOf, readLink, type Link } from "./link";
import { Outbox } from "./outbox";
import { canvasOf, filled, forgetBorders, heated, stamp, strokeBorders, windowed, type Point } from "./pixels";
import { Planes } from "./planes";
import { plotMeasure } from "./plot";
import { differences, type Labels } from "./runs";
import { fillStrip } from "./strip";
import { Camera, View } from "./view";
import { dragged, following, presets, type Window } from "./windows";

type Tool = "look" | "brush" | "eraser" | "point" | "here" | "from" | "drag" | "merge" | "split";

const ZOOM = 1.25;
const NOTE_MS = 600;
const PROGRESS_MS = 500;
const REGION = distinct(4);
const CLICK = 4; // CSS pixels that a click may move
const OF_LATENTS = new Set<Command["name"]>(["here", "from", "drag", "raise", "lower", "effect", "copy"]);
const OF_INSTANCES = new Set<Command["name"]>(["select", "add", "merge", "split"]);
/** Of the maps of scales: what is less, as a probability, is not shown. */
const LEAST_SEEN = 0.005;

class App {
  private readonly camera = new Camera();
  private readonly views: View[];
  private session: Session | null = null;
  private cases: CaseSummary[] = [];
  open: OpenCase | null = null;
  private opening = 0;
  private isServerAway = false;
  /** The case that was asked for last; it may be one that cannot be opened. */
  private selected: number | null = null;
  private drawing: AbortController | null = null;
  private tool: Tool = "look";
  private cursor: Point | null = null;
  private draft: Labels | null = null;
  /** What the draft is painted with. */
  private paintValue = 0;
  window: Window = [0, 255];
  private image: HTMLCanvasElement | null = null;
  private overlay: HTMLCanvasElement | null = null;
  private gradings: (Uint8Array | null)[] = [];
  private readonly fills = new WeakMap<Labels, { opacity: number; canvas: HTMLCanvasElement }>();
  private noteTimer = 0;
  private readonly editing: Editing;
  /** Of a model of instances. */
  private instances: InstanceTools | null = null;
  /** How often the map over the image changed. */
  private overlays = 0;
  /** The cell whose effect is shown or asked for. */
  private effectCell = "";
  private readonly planes: Planes;
  /** Volumes are opened in three planes, since the last one was left so. */
  private wantsPlanes = false;
  private readonly effects = new Newest<null>(() => this.showOverlay());

  constructor(
    private readonly api: Api,
    private readonly ui: Controls,
  ) {
    this.views = [
      new View(ui.main, this.camera, (context, pixel) => {
        this.paintMain(context, pixel);
      }),
      new View(ui.other, this.camera, (context, pixel) => {
        this.paintOther(context, pixel);
      }),
    ];
    this.editing = new Editing(this);
    this.planes = new Planes(this, ui, this.camera);
    this.connect();
  }

  async start(): Promise<void> {
    const { ui } = this;
    this.session = await this.api.session();
    const { model, disclaimer } = this.session;
    ui.model.textContent = `${model.name}, iteration ${model.iteration.toLocaleString("en")}`;
    ui.disclaimer.textContent = disclaimer;
    const classes = model.classes.filter(({ index }) => index > 0);
    ui.class.replaceChildren(...classes.map(({ index, name }) => new Option(name, String(index))));
    ui.classChoice.hidden = classes.length < 2 || model.has_instances;
    if (model.has_instances) this.instances = new InstanceTools(this, model.foreground);
    ui.instances.hidden = !model.has_instances;
    ui.latentTools.hidden = model.has_instances || model.ndim === 3;
    ui.number.value = String(model.num_samples);
    await this.listCases();
    const first = this.cases.find(({ status }) => status === "open") ?? this.cases[0];
    const link = readLink(location.hash);
    if (!first) ui.title.textContent = "No cases yet: add an image.";
    else if (link && this.cases.some(({ id }) => id === link.case)) this.run(this.openLink(link));
    else this.run(this.openCase(first.id));
  }

  // ---------------------------------------------------------------- cases

  private async listCases(): Promise<void> {
    this.cases = await this.api.cases();
    this.showCases();
  }

  private showCases(): void {
    const { ui } = this;
    const accepted = this.cases.filter(({ status }) => status === "accepted").length;
    ui.progress.textContent = `${accepted} of ${this.cases.length} accepted`;
    [ui.progressBar.max, ui.progressBar.value] = [Math.max(this.cases.length, 1), accepted];
    refill(
      ui.cases,
      this.cases.map(({ id, name, status }) => {
        const button = make("button", `${status === "accepted" ? "✓ " : ""}${name}`);
        button.setAttribute("aria-label", `${name}, ${status}`);
        if (id === this.selected) button.setAttribute("aria-current", "true");
        button.addEventListener("click", () => {
          this.run(this.openCase(id));
        });
        return make("li", [button]);
      }),
    );
    ui.cases.querySelector('[aria-current="true"]')?.scrollIntoView({ block: "nearest" });
  }

  private async openCase(id: number, slice?: number): Promise<void> {
    const { ui } = this;
    this.editing.commit();
    this.saveNote();
    const number = (this.opening += 1);
    this.drawing?.abort();
    this.selected = id;
    this.showCases();
    ui.title.textContent = "Loading…";
    const [item, { version, events }] = await Promise.all([this.api.case(id), this.api.events(id)]).catch((error: unknown) => {
      if (number === this.opening) this.showUnopened(id, error);
      throw error;
    });
    if (number !== this.opening) return; // another case was opened meanwhile
    const key = `hpunet/${location.host}/${item.id}/${item.name}`;
    const left = Outbox.left(key, localStorage, events);
    const opened: OpenCase = new OpenCase(
      this.api,
      item,
      [...events, ...left],
      new Outbox(this.api, id, version, key, localStorage, {
        sent: (state, waiting) => {
          if (state) opened.state = state;
          this.isServerAway = state === null && waiting > 0;
          this.showSaved(waiting);
          if (opened === this.open) this.showState();
        },
        changed: () => {
          if (opened === this.open) this.run(this.openCase(id, opened.slice));
        },
        failed: (message) => {
          this.say(message, true);
        },
      }),
    );
    this.open = opened;
    opened.showPlanes(this.session?.model.ndim === 3 || (this.wantsPlanes && item.slices > 1));
    opened.slice = Math.min(slice ?? (opened.volume ? item.slices >> 1 : 0), item.slices - 1);
    ui.planes.hidden = item.slices < 2 || (this.session?.model.ndim === 2 && this.instances !== null);
    this.press(ui.planes, opened.volume !== null);
    opened.numSamples = this.wantedSamples;
    opened.resume();
    if (left.length > 0) opened.outbox.send();
    [this.window, this.image, this.overlay, this.gradings] = [[...item.window], null, null, []];
    [ui.low.value, ui.high.value] = this.window.map(short) as [string, string];
    ui.title.textContent = item.name;
    ui.note.value = opened.history.note;
    ui.slices.hidden = item.slices < 2;
    [ui.slice.max, ui.slice.value] = [String(item.slices - 1), String(opened.slice)];
    const format = ui.format.value;
    ui.format.replaceChildren(...item.formats.map((each) => new Option(each, each, false, each === format)));
    ui.graders.disabled = item.graders.length === 0;
    ui.note.disabled = ui.export.disabled = false;
    this.planes.begin();
    this.camera.fit(opened.size, this.views[0]?.size ?? opened.size);
    this.cursor = null;
    ui.place.textContent = "";
    this.setTool(opened.waitsForPoint ? "point" : "look");
    this.press(ui.flip, false);
    this.showState();
    await this.showSlice();
    this.say(`${item.name} is open.`);
  }

  /** Show the name of a case that cannot be opened, and nothing of the one before; that stays while the server is away. */
  private showUnopened(id: number, error: unknown): void {
    const { ui } = this;
    if (error instanceof Lost && this.open) {
      this.selected = this.open.item.id;
      ui.title.textContent = this.open.item.name;
      this.showCases();
      return;
    }
    this.open = this.image = this.overlay = null;
    this.gradings = [];
    ui.title.textContent = this.cases.find((item) => item.id === id)?.name ?? "";
    for (const part of [ui.strip, ui.plot, ui.warnings, ui.notes, ui.graderNames]) part.replaceChildren();
    for (const part of [ui.caption, ui.measures, ui.place, ui.saved]) part.textContent = "";
    for (const control of [ui.accept, ui.undo, ui.redo, ui.flip, ui.compare, ui.export, ui.note]) control.disabled = true;
    ui.note.value = "";
    ui.slices.hidden = ui.planes.hidden = true;
    this.planes.begin();
    this.redrawViews();
  }

  private async neighbour(by: 1 | -1): Promise<void> {
    const index = this.cases.findIndex(({ id }) => id === this.selected);
    const next = this.cases[(index + by + this.cases.length) % this.cases.length];
    if (next) await this.openCase(next.id);
  }

  /** Add files as cases, and open the first. */
  private async upload(files: readonly File[]): Promise<void> {
    let first: number | null = null;
    try {
      for (const file of files) {
        this.ui.hint.textContent = `Reading ${file.name}…`;
        const id = await this.api.upload(file);
        first ??= id;
      }
      this.showHint();
    } finally {
      await this.listCases();
      if (first !== null) await this.openCase(first);
    }
  }

  // ---------------------------------------------------------------- slices and samples

  private async showSlice(): Promise<void> {
    const { open, ui } = this;
    if (!open) return;
    ui.sliceNumber.textContent = `${open.slice + 1} of ${open.item.slices}`;
    if (open.volume) {
      await this.showPlanes(open);
      return;
    }
    this.image = this.overlay = null;
    this.gradings = [];
    await this.showImage();
    if (!open.current) {
      open.resume();
      ui.number.value = String(open.numSamples);
    }
    if (!open.current && !open.waitsForPoint) await this.drawSamples();
    else await this.showDrawn();
  }

  /** Show the three planes at the crosshair, and draw samples of the volume if there are none. */
  private async showPlanes(open: OpenCase): Promise<void> {
    await this.planes.refresh();
    if (open !== this.open) return;
    if (!open.volume?.answer) {
      open.resume();
      this.ui.number.value = String(open.numSamples);
    }
    if (open.volume?.answer || open.waitsForPoint) await this.showDrawn();
    else await this.drawSamples();
  }

  /** From slices to planes, or back. */
  private async togglePlanes(): Promise<void> {
    const { open, ui } = this;
    if (!open || ui.planes.hidden) return;
    if (this.session?.model.ndim === 3) {
      this.say("This model draws whole volumes: the three planes stay.", true);
      return;
    }
    this.editing.commit();
    this.drawing?.abort();
    this.wantsPlanes = !open.volume;
    open.showPlanes(this.wantsPlanes);
    this.press(ui.planes, open.volume !== null);
    this.press(ui.flip, false);
    this.image = this.overlay = null;
    this.planes.begin();
    this.camera.fit(open.size, this.views[0]?.size ?? open.size);
    this.setTool(open.waitsForPoint ? "point" : "look");
    this.say(open.volume ? "Three planes." : "Slice by slice.");
    this.showState();
    await this.showSlice();
  }

  /** Another slice is going to be shown. */
  leaveSlice(): void {
    this.editing.commit();
  }

  /** The planes have come to another place, or show something else there. */
  planesShown(isNewSlice: boolean): void {
    const { open, ui } = this;
    if (!open) return;
    const { z } = this.planes.voxel;
    const { image, heat, gradings } = this.planes.picture("axial");
    open.slice = z;
    [this.image, this.gradings] = [image, gradings];
    if (ui.scaleMap.value === "none") this.overlay = heat;
    else if (isNewSlice) this.run(this.showOverlay());
    ui.slice.value = String(z);
    ui.sliceNumber.textContent = `${z + 1} of ${open.item.slices}`;
    if (isNewSlice) this.showState();
    else this.redrawViews();
  }

  get heat(): string {
    return this.ui.overlay.value;
  }

  get flipped(): number | null {
    return isPressed(this.ui.flip) ? Number(this.ui.sample.value) : null;
  }

  get isHidden(): boolean {
    return isPressed(this.ui.hide);
  }

  get showsGraders(): boolean {
    return isPressed(this.ui.graders);
  }

  private async showImage(): Promise<void> {
    const { open } = this;
    if (!open) return;
    if (open.volume) {
      await this.planes.refresh();
      return;
    }
    const { slice } = open;
    const values = await open.pixels();
    if (open !== this.open || slice !== open.slice) return;
    this.image = canvasOf(windowed(values, open.item.channels, this.window), open.size);
    this.redrawViews();
  }

  private async setSlice(slice: number): Promise<void> {
    const { open } = this;
    if (!open || slice < 0 || slice >= open.item.slices || slice === open.slice) return;
    if (open.volume) {
      this.planes.toSlice(slice);
      return;
    }
    this.editing.commit();
    this.drawing?.abort();
    open.slice = slice;
    this.ui.slice.value = String(slice);
    this.press(this.ui.flip, false);
    this.showState();
    await this.showSlice();
  }

  private get wantedSamples(): number {
    return Math.min(Math.max(Math.round(Number(this.ui.number.value)) || (this.session?.model.num_samples ?? 16), 1), 64);
  }

  private async drawSamples(): Promise<void> {
    const { open, ui } = this;
    if (!open || open.waitsForPoint) return;
    this.drawing?.abort();
    const drawing = (this.drawing = new AbortController());
    open.numSamples = this.wantedSamples;
    ui.number.value = String(open.numSamples);
    ui.hint.textContent = `Drawing ${open.numSamples} samples…`;
    const telling = open.volume ? window.setInterval(() => {
      this.run(this.tellProgress(open, drawing));
    }, PROGRESS_MS) : 0;
    try {
      await open.draw(drawing.signal);
    } catch (error) {
      if (drawing.signal.aborted) return;
      this.showHint();
      throw error;
    } finally {
      window.clearInterval(telling);
    }
    if (open !== this.open || drawing !== this.drawing) return;
    this.showHint();
    const hypotheses = open.current?.answer.hypotheses ?? [];
    const words = hypotheses.map(({ share, description }, i) => `${i + 1}: ${description}, ${percent(share)}`);
    if (this.instances) this.say(`${open.current?.answer.num_samples ?? 0} samples: ${hypotheses[0]?.description ?? ""}.`);
    else this.say(`${hypotheses.length} distinct hypotheses. ${words.join("; ")}`);
    await this.showDrawn();
  }

  /** Samples of a volume take their time. */
  private async tellProgress(open: OpenCase, drawing: AbortController): Promise<void> {
    const done = await this.api.progress();
    if (drawing !== this.drawing || drawing.signal.aborted || !this.ui.hint.textContent.startsWith("Drawing")) return;
    const all = open.numSamples * (this.session?.model.ndim === 3 ? 1 : open.item.slices);
    this.ui.hint.textContent = `Drawing ${open.numSamples} samples of the volume… ${percent(Math.min(done / all, 1))}`;
  }

  private async showDrawn(): Promise<void> {
    const { open, ui } = this;
    if (!open) return;
    if (open.volume) await this.planes.refresh();
    if (open !== this.open) return;
    const answer = open.current?.answer ?? null;
    ui.sample.max = String((answer?.num_samples ?? 1) - 1);
    ui.sample.value = "0";
    ui.sample.disabled = ui.flip.disabled = ui.compare.disabled = answer === null;
    const options = (answer?.hypotheses ?? []).map(
      ({ share, description }, i) =>
        new Option(this.instances ? `clustering: ${description}` : `${i + 1}: ${percent(share)}, ${description}`, String(i)),
    );
    ui.otherChoice.replaceChildren(...options);
    ui.otherChoice.value = String(Math.min(1, options.length - 1));
    const notes = [...new Set([...open.item.notes, ...(answer?.notes ?? [])])];
    const isWarning = (note: string): boolean => note.startsWith("Warning");
    ui.warnings.replaceChildren(...notes.filter(isWarning).map((note) => make("li", note)));
    ui.notes.replaceChildren(...notes.filter((note) => !isWarning(note)).map((note) => make("li", note)));
    this.showScales();
    this.showState();
    await this.showGraders();
    await this.showOverlay();
  }

  /** Show the map that is chosen: of all samples, or of a scale. */
  private async showOverlay(): Promise<void> {
    const { open, ui } = this;
    const number = (this.overlays += 1);
    const [kind, scaleKind] = [ui.overlay.value, ui.scaleMap.value];
    ui.legend.hidden = kind === "none";
    ui.scaleLegend.hidden = scaleKind === "none";
    ui.legendEnd.textContent = kind === "std" ? "0.5 standard deviation" : "1 probability";
    if (scaleKind !== "effect" && !open?.volume) this.overlay = null; // effects follow the pointer and should not flicker
    ui.scaleLegendEnd.textContent = "…";
    const found =
      kind === "mean" || kind === "std" ? { values: await open?.summary(kind), words: "" }
      : scaleKind === "none" ? null
      : await this.scaleMap(scaleKind as ScaleMapKind);
    if (number !== this.overlays || open !== this.open) return; // another map is wanted by now
    const { place } = open?.current?.answer ?? {};
    this.overlay = found?.values && place ? canvasOf(heated(found.values, 0.7), place) : null;
    if (open?.volume) await this.planes.refresh();
    ui.scaleLegendEnd.textContent = found?.words ?? "";
    this.showCaption();
    this.redrawViews();
  }

  /** A map of the chosen scale, for the hypothesis as it is. */
  private async scaleMap(kind: ScaleMapKind): Promise<{ values: Uint8Array | null; words: string }> {
    const { open } = this;
    const origin = open?.origin;
    const wish: ScaleMapWish = { scale: this.scale, kind };
    if (kind === "effect") {
      const [cell, place] = [this.cellAtCursor, open?.current?.answer.place];
      if (!cell || !place) return { values: null, words: "point at a latent" };
      [wish.point, wish.channel] = [middleOf(cell, place), this.channel];
    }
    if (!open || !origin) return { values: null, words: "choose a hypothesis first" };
    const { values, most } = await open.scaleMap(origin, wish);
    if (kind !== "sigma" && most < LEAST_SEEN) return { values: null, words: "changes nothing here" };
    const units = { sigma: "prior σ", spread: "standard deviation", effect: "change from −1 σ to 1 σ" };
    return { values, words: `${short(most)} ${units[kind]}` };
  }

  /** A row for each scale that has latents. */
  private showScales(): void {
    const { open, ui } = this;
    const scales = open?.current?.answer.scales ?? [];
    const all = scales.map((scale, index) => ({ ...scale, index })).filter(({ channels }) => channels > 0);
    const names = all.map((scale) => nameOf(scale)).join();
    if (ui.scales.dataset.names === names) return;
    ui.scales.dataset.names = names;
    ui.scales.replaceChildren(
      ...all.map((scale, i) => {
        const radio = make("input");
        [radio.type, radio.name, radio.value, radio.checked] = ["radio", "scale", String(scale.index), i === all.length - 1];
        radio.addEventListener("change", () => {
          this.showChannels();
          this.effectCell = "";
          this.run(this.showOverlay());
        });
        const name = nameOf(scale);
        const finer = all.slice(i).map(({ index }) => index);
        const draw = make("button", "Draw");
        draw.setAttribute("aria-label", i < all.length - 1 ? `Draw ${name} and everything finer` : `Draw ${name}`);
        draw.title = draw.ariaLabel ?? "";
        draw.addEventListener("click", () => {
          const { temperature } = this;
          const words = `${name}${finer.length > 1 ? " and everything finer are" : " is"} redrawn.`;
          this.run(this.editing.edit(() => ({ kind: "redraw", seed: anySeed(), scales: finer, temperature }), words));
        });
        const mean = make("button", "Mean");
        mean.setAttribute("aria-label", `${name} at its mean`);
        mean.title = mean.ariaLabel ?? "";
        mean.addEventListener("click", () => {
          const action = { kind: "redraw", seed: 0, scales: [scale.index], temperature: 0 } as const;
          this.run(this.editing.edit(() => ({ ...action, scales: [...action.scales] }), `${name} is at its mean.`));
        });
        const row = make("div", [make("label", [radio, ` ${name}`]), draw, mean]);
        row.className = "row";
        return row;
      }),
    );
    this.showChannels();
  }

  private showChannels(): void {
    const { ui } = this;
    const count = this.open?.current?.answer.scales[this.scale]?.channels ?? 1;
    ui.channelChoice.hidden = count < 2;
    ui.channel.max = String(count - 1);
  }

  /** The scale that is dragged, and whose map is shown. */
  private get scale(): number {
    return Number(this.ui.scales.querySelector<HTMLInputElement>("input:checked")?.value ?? 0);
  }

  private get channel(): number {
    return Math.min(Math.max(Math.round(Number(this.ui.channel.value)) || 0, 0), Number(this.ui.channel.max) || 0);
  }

  private get temperature(): number {
    const value = Number(this.ui.temperature.value);
    return this.ui.temperature.value === "" || !(value >= 0) ? 1 : Math.min(value, 100);
  }

  private get cellAtCursor(): Box | null {
    const { scales, grid, place } = this.open?.current?.answer ?? {};
    const scale = scales?.[this.scale];
    return this.tool === "drag" && this.cursor && scale && grid && place ? cellAt(this.cursor, scale, grid, place) : null;
  }

  /** Show the effect of the latent that the cross has come to. */
  private followEffect(): void {
    const cell = this.cellAtCursor;
    const key = cell ? `${cell.x},${cell.y}` : "";
    if (this.ui.scaleMap.value !== "effect" || this.editing.isDragging || key === this.effectCell) return;
    this.effectCell = key;
    this.run(this.effects.want(null));
  }

  private async showGraders(): Promise<void> {
    const { open, ui } = this;
    const shown = open && isPressed(ui.graders) ? open.item.graders : [];
    if (open?.volume) await this.planes.refresh();
    this.gradings = open ? await Promise.all(shown.map((_, i) => open.grading(i))) : [];
    ui.graderNames.replaceChildren(
      ...shown.map((name, i) => {
        const entry = make("li", `Grader ${name}${this.gradings[i] ? "" : " (did not look)"}`);
        entry.style.color = css(distinct(i + 1));
        return entry;
      }),
    );
    this.redrawViews();
  }

  // ---------------------------------------------------------------- what is shown of the case's state

  private showState(): void {
    const { open, ui } = this;
    if (!open) return;
    const { isDecided } = this;
    fillStrip(ui.strip, open, this.image, { chosen: open.chosen, isDecided }, (hypothesis) => {
      this.choose(hypothesis);
    });
    ui.undo.disabled = !open.history.canUndo;
    ui.redo.disabled = !open.history.canRedo;
    this.showReset();
    ui.copy.disabled = !open.history.origin(open.slice).source?.state;
    const isAccepted = open.history.status === "accepted";
    ui.accept.disabled = !isAccepted && !open.history.canUndo;
    ui.accept.replaceChildren(isAccepted ? "Reopen " : "Accept ", make("kbd", "a"));
    this.showCaption();
    this.showMeasures();
    this.instances?.show(ui.instance);
    const summary = this.cases.find(({ id }) => id === open.item.id);
    if (summary && summary.status !== open.history.status) {
      summary.status = open.history.status;
      this.showCases();
    }
    this.redrawViews();
  }

  /** Whether the slice has a mask, which may be empty: chosen, or drawn by hand. */
  get isDecided(): boolean {
    const { source, isEdited } = this.open?.history.origin(this.open.slice) ?? {};
    return Boolean(source ?? isEdited) || this.draft !== null || this.editing.preview !== null;
  }

  /** What the canvas shows. */
  private showCaption(): void {
    const { open, ui } = this;
    if (!open) return;
    const { source, isEdited } = open.history.origin(open.slice);
    const count = source?.num_edits ?? 0;
    const edited = [count === 1 ? "1 edit of its latents" : count > 1 ? `${count} edits of its latents` : "", isEdited ? "corrected" : ""];
    const how = edited.filter(Boolean).join(", ") || "as drawn";
    const clustering = source && this.instances ? `Clustering of ${source.num_samples} samples, ${how}` : null;
    let words = clustering ?? (source ? `Hypothesis ${source.hypothesis + 1} (${percent(source.share)}), ${how}` : "Drawn by hand");
    if (open.history.status === "accepted") words += "; accepted";
    if (!this.isDecided) words = open.current ? "Nothing chosen yet" : "";
    if (words && !this.isDecided && !this.overlay) words += this.instances ? ": the outlines are those of the clustering" : ": the outlines are those of all hypotheses";
    if (isPressed(ui.flip)) words = `Sample ${Number(ui.sample.value) + 1} of ${Number(ui.sample.max) + 1}`;
    ui.caption.textContent = this.editing.caption || words;
  }

  private showReset(): void {
    const { open, ui, editing } = this;
    const isEdited = Boolean(open?.history.origin(open.slice).source?.num_edits) && open?.chosenFrom !== null;
    ui.reset.disabled = !editing.isDragging && !isEdited;
  }

  /** The tools of the latents show something else. */
  changed(): void {
    this.showReset();
    this.showCaption();
    this.instances?.show(this.ui.instance);
    this.redrawViews();
  }

  private showMeasures(): void {
    const { open, ui } = this;
    const answer = open?.current?.answer;
    const state = this.isServerAway ? undefined : open?.state.slices[String(open.slice)];
    const unit = answer?.units ?? (open?.item.spacing ? "mm" : "px");
    const [area, length] = unit === "mm" ? ["mm²", "mm"] : ["pixels", "pixels"];
    const count = state?.num_instances;
    if (state && count !== undefined) ui.measures.textContent = `${count} instance${count === 1 ? "" : "s"}, area ${short(state.area)} ${area}`;
    else ui.measures.textContent = state
      ? `Area ${short(state.area)} ${area}, longest diameter ${short(state.diameter)} ${length}`
      : this.isServerAway ? "Measured when the server is back." : "Choose a hypothesis to measure it.";
    const whole = this.isServerAway ? undefined : open?.state.volume;
    const words = whole?.units === "ml" ? "ml" : "voxels";
    if (open?.volume) {
      const slice = state ? `; on this slice ${short(state.area)} ${area}` : "";
      ui.measures.textContent = whole && open.history.isTouched ? `Volume ${short(whole.size)} ${words}${slice}` : ui.measures.textContent.replace("it.", "its volume.");
    }
    ui.plot.replaceChildren();
    if (!answer) return;
    if (answer.volumes) ui.plot.append(plotMeasure("Volume", words, answer.volumes, open.history.isTouched ? (whole?.size ?? null) : null));
    if (answer.volumes) return;
    for (const [name, key, words] of [["Area", "area", area], ["Diameter", "diameter", length]] as const) {
      if (this.instances && key === "diameter") continue; // of all instances together it says nothing
      ui.plot.append(plotMeasure(name, words, answer.samples.map((sample) => sample[key]), state?.[key] ?? null));
    }
  }

  private showSaved(waiting: number): void {
    const { ui } = this;
    const many = waiting === 1 ? "1 change waits" : `${waiting} changes wait`;
    ui.saved.textContent = waiting > 0 ? `${many} to be saved.` : "Everything is saved.";
    ui.banner.hidden = !this.isServerAway;
    if (this.isServerAway) ui.banner.textContent = `The server does not answer. ${many} here and will be sent when it is back.`;
  }

  /** Tell those who listen, and, if it is to be seen, those who look. */
  say(words: string, isSeen = false): void {
    this.ui.status.textContent = words;
    if (isSeen) this.ui.hint.textContent = words;
  }

  /** Await work that a control started; what goes wrong is said. */
  run(work: Promise<unknown>): void {
    work.catch((error: unknown) => {
      if (error instanceof DOMException && error.name === "AbortError") return;
      this.say(error instanceof Error ? error.message : String(error), true);
      if (error instanceof Lost) this.ui.hint.textContent = "The server does not answer; start hpunet view again and reload.";
    });
  }

  // ---------------------------------------------------------------- steps

  act(...events: CaseEvent[]): number | null {
    const slice = this.open?.act(...events) ?? null;
    this.effectCell = "";
    if (this.ui.scaleMap.value !== "none") this.run(this.showOverlay());
    this.showHint();
    this.showSaved(this.open?.outbox.numWaiting ?? 0);
    this.showState();
    return slice;
  }

  private choose(hypothesis: number): void {
    this.editing.cancel();
    if (this.open?.volume) this.run(this.chooseVolume(this.open, hypothesis));
    else this.chosen(hypothesis, this.open?.choice(hypothesis) ?? null);
  }

  /** The masks of all slices become those of a hypothesis. */
  private async chooseVolume(open: OpenCase, hypothesis: number): Promise<void> {
    const event = await open.volumeChoice(hypothesis);
    if (open === this.open) this.chosen(hypothesis, event);
  }

  private chosen(hypothesis: number, event: CaseEvent | null): void {
    if (!event) return;
    const wasFlipped = isPressed(this.ui.flip);
    this.press(this.ui.flip, false);
    this.act(event);
    if (wasFlipped && this.open?.volume) this.run(this.planes.refresh());
    this.ui.strip.children[hypothesis]?.scrollIntoView({ block: "nearest", inline: "nearest" });
    const found = this.open?.current?.answer.hypotheses[hypothesis];
    const what = this.instances ? "The clustering" : `Hypothesis ${hypothesis + 1}`;
    this.say(`${what} is chosen: ${found?.description ?? ""}`);
  }

  private cycle(by: 1 | -1): void {
    const count = this.open?.current?.answer.hypotheses.length ?? 0;
    const now = this.open?.history.origin(this.open.slice).source?.hypothesis ?? (by === 1 ? -1 : 0);
    if (count > 0) this.choose((now + by + count) % count);
  }

  private undo(kind: "undo" | "redo"): void {
    if (this.editing.isDragging) {
      this.takeBack();
      return;
    }
    const { history } = this.open ?? {};
    if (!history || !(kind === "undo" ? history.canUndo : history.canRedo)) return;
    const slice = this.act({ kind });
    if (slice !== null) this.run(this.setSlice(slice));
    this.say(kind === "undo" ? "Undone." : "Done again.");
  }

  private accept(): void {
    const { open } = this;
    if (!open) return;
    this.editing.commit();
    if (this.ui.accept.disabled) {
      this.say("Choose a hypothesis first, or draw with the brush.", true);
      return;
    }
    this.saveNote();
    const isAccepted = open.history.status === "accepted";
    this.act({ kind: isAccepted ? "reopen" : "accept" });
    const { numSlices } = open.history;
    const rest = numSlices < open.item.slices ? ` ${numSlices} of ${open.item.slices} slices are decided, the others empty.` : "";
    if (isAccepted) this.say("The case is open again.");
    else this.say(`The case is accepted.${rest}`, rest !== "");
  }

  private saveNote(): void {
    window.clearTimeout(this.noteTimer);
    const { open, ui } = this;
    if (open && ui.note.value !== open.history.note) this.act({ kind: "note", text: ui.note.value });
  }

  private async export(): Promise<void> {
    const { open, ui } = this;
    if (!open) return;
    this.editing.commit();
    this.saveNote();
    await open.outbox.settled();
    const { name, content } = await this.api.export(open.item.id, ui.format.value, open.slice);
    const link = make("a");
    [link.href, link.download] = [URL.createObjectURL(content), name];
    link.click();
    URL.revokeObjectURL(link.href);
    this.say(`${name} is exported.`, true);
  }

  // ---------------------------------------------------------------- edits of latents, and links

  /** A drag that is not a step yet is taken back. */
  private takeBack(): void {
    this.editing.cancel();
    this.showState();
    this.say("Taken back.");
  }

  /** The hypothesis as it was drawn. */
  private reset(): void {
    const number = this.open?.chosenFrom ?? null;
    if (this.editing.isDragging) this.takeBack();
    else if (number !== null) this.choose(number);
    else this.say("Draw the same samples first, or undo.", true);
  }

  private finishRegion(): void {
    const { editing, temperature, ui } = this;
    const done =
      this.tool === "here"
        ? editing.finishRegion((region) => ({ kind: "redraw", seed: anySeed(), region, temperature }), "Redrawn under the stroke.")
        : editing.finishRegion((region, open) => {
            const other = open.startOf(Number(ui.otherChoice.value));
            if (!other) throw new Error("Draw samples to take from.");
            return { kind: "combine", other, region };
          }, `Taken from hypothesis ${Number(ui.otherChoice.value) + 1}.`);
    this.run(done);
  }

  private async copyLink(): Promise<void> {
    const { open } = this;
    this.editing.commit();
    const { source, isEdited } = open?.history.origin(open.slice) ?? {};
    if (!open || !source?.state) {
      this.say("Choose a hypothesis first; those of large images have no links.", true);
      return;
    }
    const link = { case: open.item.id, slice: open.slice, source: { ...source, state: source.state } };
    const address = addressOf(link, location);
    const rest = isEdited ? " Strokes of the brush are not part of it." : "";
    try {
      await navigator.clipboard.writeText(address);
      this.say(`The link is copied.${rest}`, true);
    } catch {
      history.replaceState(null, "", address); // pages that are not from this machine may not copy
      this.say(`The link is the address of this page now.${rest}`, true);
    }
  }

  /** Show the map that a link leads to; it becomes a step if it is not the map of the slice already. */
  private async openLink(link: Link): Promise<void> {
    history.replaceState(null, "", location.pathname + location.search);
    if (!this.cases.some(({ id }) => id === link.case)) throw new Error("The link leads to a case that this work list does not have.");
    await this.openCase(link.case, link.slice);
    const { open } = this;
    const { slice, source } = link;
    if (open?.item.id !== link.case) return;
    if (open.slice !== slice) throw new Error("The link leads to a slice that this case does not have.");
    const origin = { slice, start: { state: source.state }, source };
    const edited = await open.edit(origin, { kind: "keep" });
    if (open !== this.open || open.slice !== slice) return;
    if (this.isDecided && differences(open.mask, edited.map).length === 0) {
      this.say("The link's map is the one that is shown.", true);
      return;
    }
    if (open.history.status === "accepted") throw new Error("The case is accepted; reopen it, and open the link again.");
    this.act(open.editedChoice(origin, edited, source.num_edits ?? 0));
    if (open.chosenFrom === null) {
      open.resume();
      this.ui.number.value = String(open.numSamples);
      await this.drawSamples();
    }
    this.say("The link's map is shown; undo takes it back.", true);
  }

  // ---------------------------------------------------------------- brush, eraser, pointing

  private setTool(tool: Tool): void {
    const { ui } = this;
    this.editing.commit();
    this.instances?.cancel();
    this.tool = tool;
    for (const name of ["brush", "eraser", "point", "here", "from", "drag", "merge", "split"] as const) this.press(ui[name], tool === name);
    if (tool === "from" && ui.second.hidden && !ui.compare.disabled) this.handle({ name: "compare" });
    if (tool === "drag") this.openScales();
    this.cursor = tool === "look" ? null : (this.cursor ?? { ...this.camera.centre });
    this.showHint();
    this.followEffect();
    this.redrawViews();
  }

  /** What the tool in the hand does. */
  private showHint(): void {
    const waits = this.open?.waitsForPoint;
    const words = {
      look: waits ? "Press o, then click the middle of the object." : "",
      brush: this.instances
        ? "Brush: enlarges the selected instance, or draws a new one; b ends it."
        : "Brush: drag on the image to add; b ends it.",
      merge: "Merge: drag from one instance to others, which become part of it; y ends it.",
      split: "Split: drag across an instance; its parts become instances of their own; z ends it.",
      eraser: "Eraser: drag on the image to remove; e ends it.",
      point: `${waits ? "The image is larger than those of training: c" : "C"}lick the middle of the object.`,
      here: "Redraw here: click or drag; only latents under the stroke are redrawn. l ends it.",
      from: "Take from: drag over what comes from the hypothesis beside; t ends it.",
      drag: "Drag: press on the image, then up or down (or keys k and j); d ends it.",
    };
    this.ui.hint.textContent = words[this.tool];
  }

  private get value(): number {
    if (this.tool === "brush" && this.instances) return this.instances.brushId;
    return this.tool === "brush" ? Number(this.ui.class.value) || 1 : 0;
  }

  private get brushSize(): number {
    return Math.min(Math.max(Number(this.ui.size.value) || 1, 1), 200);
  }

  private paintTo(from: Point, to: Point): void {
    const { open } = this;
    if (!open) return;
    if (this.tool === "here" || this.tool === "from") {
      this.editing.paintTo(from, to, this.brushSize);
      return;
    }
    if (this.tool === "merge" || this.tool === "split") {
      this.instances?.paintTo(from, to, this.brushSize);
      return;
    }
    if (!this.draft) [this.draft, this.paintValue] = [open.mask.slice(), this.value];
    stamp(this.draft, open.size, from, to, this.brushSize, this.paintValue);
    forgetBorders(this.draft);
    if (this.instances) keepColours(this.draft, open.mask, open.size);
    this.fills.delete(this.draft);
    this.redrawViews();
  }

  private finishStroke(): void {
    const { open, draft } = this;
    if (this.editing.region) this.finishRegion();
    if (this.tool === "merge" || this.tool === "split") this.instances?.finish(this.tool);
    this.draft = null;
    if (!open || !draft) return;
    const runs = differences(open.mask, draft);
    if (runs.length > 0) {
      this.act({ kind: "paint", slice: open.slice, value: this.paintValue, runs });
      if (this.paintValue > 0) this.instances?.select(this.paintValue);
    }
    this.redrawViews();
  }

  private async pointAt({ x, y }: Point): Promise<void> {
    const { open } = this;
    if (!open || x < 0 || y < 0 || x >= open.item.width || y >= open.item.height) return;
    open.at = [Math.floor(x), Math.floor(y)];
    this.setTool("look");
    await this.drawSamples();
    const { place } = open.current?.answer ?? {};
    if (open !== this.open || !place) return;
    this.camera.show(place, this.views[0]?.size ?? open.size);
    this.ui.place.textContent = "";
    this.redrawViews();
  }

  private useCursor(): void {
    if (!this.cursor || this.tool === "look") return;
    if (this.tool === "point") {
      this.run(this.pointAt(this.cursor));
      return;
    }
    if (this.tool === "drag") {
      this.run(this.editing.release());
      return;
    }
    const { cursor } = this;
    this.attempt(() => {
      this.paintTo(cursor, cursor);
      this.finishStroke();
    });
  }

  // ---------------------------------------------------------------- painting the canvases

  private redrawViews(): void {
    for (const view of this.views) view.draw();
    if (this.planes.isOn) this.planes.draw();
  }

  private paintMain(context: CanvasRenderingContext2D, pixel: number): void {
    const { open, ui } = this;
    if (!open) return;
    if (this.image) context.drawImage(this.image, 0, 0);
    const { place } = open.current?.answer ?? {};
    if (this.overlay && place) context.drawImage(this.overlay, place.x, place.y);
    if (place && (place.height < open.item.height || place.width < open.item.width)) {
      context.strokeStyle = "#b4bec6";
      context.lineWidth = pixel;
      context.strokeRect(place.x, place.y, place.width, place.height);
    }
    if (!isPressed(ui.hide)) this.paintMaps(context, pixel, open);
    for (const region of [this.editing.region, this.instances?.stroke, ...this.editing.waiting]) {
      if (region) this.paintRegion(context, region, pixel);
    }
    if (open.volume) this.planes.paintCrosshair("axial", context, pixel, open.size);
    const cell = this.editing.cell ?? this.cellAtCursor;
    if (cell) paintCell(context, cell, pixel, this.editing.isDragging);
    if (this.cursor) this.paintCursor(context, pixel, this.cursor);
  }

  private paintMaps(context: CanvasRenderingContext2D, pixel: number, open: OpenCase): void {
    const { ui } = this;
    this.gradings.forEach((map, i) => {
      if (map) this.paintOutline(context, map, 1.5 * pixel, () => distinct(i + 1), true);
    });
    if (isPressed(ui.flip)) {
      this.paintLabels(context, open.sample(Number(ui.sample.value)), pixel);
      return;
    }
    if (!this.isDecided && !this.overlay) {
      open.current?.answer.hypotheses.forEach((_, i) => {
        this.paintOutline(context, open.map(i), 1.5 * pixel, () => distinct(i));
      });
    }
    this.paintLabels(context, this.draft ?? this.editing.preview ?? open.mask, pixel);
    const { selected = 0, map } = this.instances ?? {};
    if (selected > 0 && map && !this.draft) {
      strokeBorders(context, map, open.size, { label: selected, colour: [255, 255, 255], width: 3 * pixel, dashed: true });
    }
  }

  private paintRegion(context: CanvasRenderingContext2D, region: Uint8Array, pixel: number): void {
    const { open } = this;
    if (!open) return;
    context.drawImage(canvasOf(filled(region, () => REGION, 0.4), open.size), 0, 0);
    this.paintOutline(context, region, 1.5 * pixel, () => REGION, true);
  }

  private paintOther(context: CanvasRenderingContext2D, pixel: number): void {
    const { open, ui } = this;
    if (!open || ui.second.hidden) return;
    if (this.image) context.drawImage(this.image, 0, 0);
    if (open.current && !isPressed(ui.hide)) this.paintLabels(context, open.map(Number(ui.otherChoice.value)), pixel);
  }

  paintLabels(context: CanvasRenderingContext2D, labels: Labels, pixel: number, size = this.open?.size): void {
    const { open, ui } = this;
    const opacity = Number(ui.opacity.value) / 100;
    if (!open || !size) return;
    const colour = this.instances ? colourOf(labels, size) : (label: number) => distinct(label - 1);
    if (opacity > 0 && !this.overlay) {
      let fill = this.fills.get(labels);
      if (fill?.opacity !== opacity) {
        fill = { opacity, canvas: canvasOf(filled(labels, colour, opacity), size) };
        this.fills.set(labels, fill);
      }
      context.drawImage(fill.canvas, 0, 0);
    }
    this.paintOutline(context, labels, 2 * pixel, colour, false, size);
  }

  paintOutline(
    context: CanvasRenderingContext2D,
    labels: Labels,
    width: number,
    colour: (label: number) => ReturnType<typeof distinct>,
    dashed = false,
    size = this.open?.size,
  ): void {
    if (!size) return;
    if (this.instances && !dashed) {
      [labels, colour] = [colourNumbers(labels, size), (number) => distinct(number - 1)];
    }
    for (const label of new Set<number>(labels)) {
      if (label > 0) strokeBorders(context, labels, size, { label, colour: colour(label), width, dashed });
    }
  }

  private paintCursor(context: CanvasRenderingContext2D, pixel: number, { x, y }: Point): void {
    const arm = 7 * pixel;
    for (const [colour, width] of [["#000", 4], ["#fff", 2]] as const) {
      context.beginPath();
      context.strokeStyle = colour;
      context.lineWidth = width * pixel;
      if (this.tool !== "point" && this.tool !== "drag") context.arc(x, y, this.brushSize / 2, 0, 2 * Math.PI);
      for (const [dx, dy] of [[arm, 0], [0, arm]] as const) {
        context.moveTo(x - dx, y - dy);
        context.lineTo(x + dx, y + dy);
      }
      context.stroke();
    }
  }

  private describePlace({ x, y }: Point): void {
    const { open, ui } = this;
    const [column, row] = [Math.floor(x), Math.floor(y)];
    if (!open || open.volume || column < 0 || row < 0 || column >= open.item.width || row >= open.item.height) return;
    ui.place.textContent = `Column ${column}, row ${row}; zoom ${Math.round(100 * this.camera.zoom)} %`;
  }

  // ---------------------------------------------------------------- controls, keys, mouse

  private press(button: HTMLButtonElement, pressed: boolean): void {
    button.setAttribute("aria-pressed", String(pressed));
  }

  private setWindow(window: Window): void {
    this.window = window;
    [this.ui.low.value, this.ui.high.value] = window.map(short) as [string, string];
    this.run(this.showImage());
  }

  private handle(command: Command): void {
    const { ui, open } = this;
    const toggle = (button: HTMLButtonElement): void => {
      if (button.disabled) return;
      this.press(button, !isPressed(button));
      this.redrawViews();
    };
    if (this.instances ? OF_LATENTS.has(command.name) : OF_INSTANCES.has(command.name)) {
      this.say(this.instances ? "Samples of instances are clustered: their latents cannot be edited here." : "This model knows no instances.", true);
      return;
    }
    switch (command.name) {
      case "choose": this.choose(command.hypothesis); break;
      case "previous": this.cycle(-1); break;
      case "following": this.cycle(1); break;
      case "redraw":
        if (open && open.current) open.seed += 1;
        this.run(this.drawSamples());
        break;
      case "flip":
        if (isPressed(ui.flip) && Number(ui.sample.value) < Number(ui.sample.max)) ui.sample.stepUp();
        else {
          toggle(ui.flip);
          ui.sample.value = "0";
        }
        this.describeFlip();
        break;
      case "planes": this.run(this.togglePlanes()); break;
      case "hide": toggle(ui.hide); break;
      case "compare":
        toggle(ui.compare);
        ui.second.hidden = !isPressed(ui.compare);
        break;
      case "graders": toggle(ui.graders); this.run(this.showGraders()); break;
      case "overlay":
        ui.scaleMap.value = "none";
        ui.overlay.selectedIndex = (ui.overlay.selectedIndex + 1) % ui.overlay.options.length;
        this.say(`Map: ${ui.overlay.selectedOptions[0]?.text ?? ""}`);
        this.run(this.showOverlay());
        break;
      case "window": if (open) this.setWindow(following(this.window, presets(open.item.window, open.item.range))); break;
      case "closer": case "further": {
        const factor = command.name === "closer" ? ZOOM : 1 / ZOOM;
        this.camera.zoomBy(factor);
        this.planes.zoomBy(factor);
        this.redrawViews();
        break;
      }
      case "fit":
        if (open) this.camera.fit(open.size, this.views[0]?.size ?? open.size);
        this.planes.fit();
        this.redrawViews();
        break;
      case "slice-up": this.stepSlice(1); break;
      case "slice-down": this.stepSlice(-1); break;
      case "point": this.setTool(this.tool === "point" ? "look" : "point"); break;
      case "brush": this.setTool(this.tool === "brush" ? "look" : "brush"); break;
      case "eraser": this.setTool(this.tool === "eraser" ? "look" : "eraser"); break;
      case "select": this.instances?.selectNext(); break;
      case "add":
        this.instances?.select(0);
        this.setTool("brush");
        break;
      case "here": case "from": case "drag": case "merge": case "split": this.setTool(this.tool === command.name ? "look" : command.name); break;
      case "raise": this.stepLatent(1); break;
      case "lower": this.stepLatent(-1); break;
      case "effect":
        ui.scaleMap.value = ui.scaleMap.value === "effect" ? "none" : "effect";
        this.chooseScaleMap();
        this.say(`Map: ${ui.scaleMap.selectedOptions[0]?.text ?? ""}`);
        break;
      case "copy": this.run(this.copyLink()); break;
      case "smaller": case "larger": {
        const by = command.name === "larger" ? 1 : -1;
        if (this.planes.isOn && this.tool === "look") this.stepSlice(by);
        else ui.size.value = String(Math.min(Math.max(this.brushSize + by, 1), 200));
        this.redrawViews();
        break;
      }
      case "paint": this.useCursor(); break;
      case "undo": this.undo("undo"); break;
      case "redo": this.undo("redo"); break;
      case "accept": this.accept(); break;
      case "next": this.run(this.neighbour(1)); break;
      case "back": this.run(this.neighbour(-1)); break;
      case "export": this.run(this.export()); break;
      case "help": ui.keys.showModal(); break;
      case "move": this.move(command.dx, command.dy); break;
    }
  }

  private stepSlice(by: 1 | -1): void {
    if (this.planes.isOn) this.planes.step(by);
    else if (this.open) this.run(this.setSlice(this.open.slice + by));
  }

  private move(dx: number, dy: number): void {
    if (this.planes.isOn && this.tool === "look") {
      this.planes.move(dx, dy);
      return;
    }
    if (this.cursor) {
      this.cursor = { x: Math.floor(this.cursor.x) + 0.5 + dx, y: Math.floor(this.cursor.y) + 0.5 + dy };
      this.describePlace(this.cursor);
      this.followEffect();
    } else this.camera.moveBy(-40 * dx, -40 * dy);
    this.redrawViews();
  }

  private openScales(): void {
    this.ui.latents.open = true;
    this.ui.latents.scrollIntoView({ block: "nearest" });
  }

  private stepLatent(direction: 1 | -1): void {
    if (this.tool !== "drag") this.setTool("drag");
    const { cursor, scale, channel } = this;
    if (cursor) this.attempt(() => {
      this.editing.step(direction, cursor, scale, channel);
    });
  }

  /** Do something that may be impossible now, which is then said. */
  private attempt(act: () => void): void {
    this.run(Promise.resolve().then(act));
  }

  /** The map of a scale takes the place of the map of all samples. */
  private chooseScaleMap(): void {
    const { ui } = this;
    if (ui.scaleMap.value !== "none") ui.overlay.value = "none";
    this.effectCell = "";
    if (ui.scaleMap.value === "effect" && this.tool !== "drag") this.setTool("drag");
    this.run(this.showOverlay());
    if (ui.scaleMap.value !== "none") this.openScales(); // the legend is there by now
  }

  private describeFlip(): void {
    const { ui } = this;
    this.showCaption();
    if (isPressed(ui.flip)) this.say(ui.caption.textContent);
    if (this.planes.isOn) this.run(this.planes.refresh());
    this.redrawViews();
  }

  private connect(): void {
    const { ui } = this;
    const names = ["redraw", "flip", "point", "planes", "hide", "compare", "graders", "window", "brush", "eraser"] as const;
    const more = ["here", "from", "drag", "merge", "split", "add", "copy", "undo", "redo", "accept", "next", "export", "help"] as const;
    for (const name of [...names, ...more]) {
      ui[name].addEventListener("click", () => {
        this.handle({ name });
      });
    }
    const on = (element: HTMLElement, type: string, act: (event: Event) => void): void => {
      element.addEventListener(type, act);
    };
    on(ui.clear, "click", () => {
      if (this.open) this.act({ kind: "clear", slice: this.open.slice });
    });
    on(ui.slice, "input", () => {
      this.run(this.setSlice(Number(ui.slice.value)));
    });
    on(ui.number, "change", () => {
      this.run(this.drawSamples());
    });
    on(ui.sample, "input", () => {
      this.press(ui.flip, true);
      this.describeFlip();
    });
    on(ui.reset, "click", () => {
      this.reset();
    });
    on(ui.scaleMap, "change", () => {
      this.chooseScaleMap();
    });
    on(ui.overlay, "change", () => {
      if (ui.overlay.value !== "none") ui.scaleMap.value = "none";
      this.run(this.showOverlay());
    });
    for (const control of [ui.opacity, ui.otherChoice, ui.size]) {
      on(control, "input", () => {
        this.redrawViews();
      });
    }
    for (const control of [ui.low, ui.high]) {
      on(control, "change", () => {
        const [low, high] = [Number(ui.low.value), Number(ui.high.value)];
        if (high > low) this.setWindow([low, high]);
      });
    }
    on(ui.note, "input", () => {
      window.clearTimeout(this.noteTimer);
      this.noteTimer = window.setTimeout(() => {
        this.saveNote();
      }, NOTE_MS);
    });
    on(ui.note, "blur", () => {
      this.saveNote();
    });
    on(ui.upload, "change", () => {
      this.run(this.upload([...(ui.upload.files ?? [])]));
      ui.upload.value = "";
    });
    on(document.body, "dragover", (event) => {
      event.preventDefault(); // else the browser leaves the page and shows the file
    });
    on(document.body, "drop", (event) => {
      event.preventDefault();
      this.run(this.upload([...((event as DragEvent).dataTransfer?.files ?? [])]));
    });
    ui.keyTable.replaceChildren(
      ...keyRows().map(([key, words]) => make("li", [make("kbd", key), words])),
    );
    this.drawLegend();
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        if (this.editing.isDragging || this.editing.region) this.takeBack();
        else this.setTool("look");
      }
      const command = commandOf(event);
      if (!command) return;
      event.preventDefault();
      this.handle(command);
    });
    window.addEventListener("hashchange", () => {
      const link = readLink(location.hash);
      if (link) this.run(this.openLink(link));
    });
    window.addEventListener("pagehide", () => {
      this.editing.commit();
      this.saveNote();
    });
    this.views.forEach((view) => {
      this.connectMouse(view);
    });
  }

  private connectMouse(view: View): void {
    const { canvas } = view;
    const isMain = view === this.views[0];
    let last: { point: Point; x: number; y: number } | null = null;
    let heldAt: number | null = null;
    let pressed: { point: Point; x: number; y: number } | null = null;
    canvas.addEventListener("contextmenu", (event) => {
      event.preventDefault();
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (isMain && this.planes.isOn && !event.shiftKey && !event.ctrlKey) this.planes.turn("axial", event);
      else if (this.planes.isOn) this.camera.zoomBy(Math.exp(-(event.deltaY + event.deltaX) / 400), view.at(event));
      else if (event.shiftKey && this.open) this.run(this.setSlice(this.open.slice + (event.deltaY + event.deltaX < 0 ? 1 : -1)));
      else this.camera.zoomBy(Math.exp(-event.deltaY / 400), view.at(event));
      this.redrawViews();
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      const point = view.at(event);
      canvas.setPointerCapture(event.pointerId);
      last = { point, x: event.clientX, y: event.clientY };
      pressed = null;
      if (!isMain || event.button !== 0) return;
      if (this.planes.isOn && this.tool === "look") this.planes.pointAt("axial", point);
      pressed = this.tool === "look" ? last : null;
      if (this.tool === "point") this.run(this.pointAt(point));
      else if (this.tool === "drag") {
        this.cursor = point;
        this.attempt(() => {
          if (this.editing.take(point, this.scale, this.channel)) heldAt = event.clientY;
        });
      } else if (this.tool !== "look") {
        this.attempt(() => {
          this.paintTo(point, point);
        });
      }
    });
    canvas.addEventListener("pointermove", (event) => {
      const point = view.at(event);
      this.describePlace(point);
      if (heldAt !== null) {
        this.editing.moveTo(heldAt - event.clientY);
        return;
      }
      if (isMain && this.tool !== "look") this.cursor = point;
      this.followEffect();
      if (last) {
        const [dx, dy] = [event.clientX - last.x, event.clientY - last.y];
        if (event.buttons === 2 && this.open) this.setWindow(dragged(this.window, dx, dy, this.open.item.range));
        else if (isMain && event.buttons === 1 && (this.draft ?? this.editing.region ?? this.instances?.stroke)) this.paintTo(last.point, point);
        else if (isMain && event.buttons === 1 && this.planes.isOn && this.tool === "look") this.planes.pointAt("axial", point);
        else if (event.buttons === 4 || this.tool === "look") this.camera.moveBy(dx, dy);
        last = { point: view.at(event), x: event.clientX, y: event.clientY };
      }
      this.redrawViews();
    });
    const end = (): void => {
      last = null;
      this.attempt(() => {
        if (this.draft ?? this.editing.region ?? this.instances?.stroke) this.finishStroke();
      });
      if (heldAt !== null) this.run(this.editing.release());
      heldAt = null;
    };
    canvas.addEventListener("pointerup", (event) => {
      end();
      const isClick = pressed && Math.hypot(event.clientX - pressed.x, event.clientY - pressed.y) < CLICK;
      if (pressed && isClick) this.instances?.selectAt(pressed.point);
    });
    canvas.addEventListener("pointercancel", end);
  }

  private drawLegend(): void {
    for (const canvas of document.querySelectorAll<HTMLCanvasElement>(".legend canvas")) {
      const context = canvas.getContext("2d");
      for (let x = 0; context && x < canvas.width; x += 1) {
        context.fillStyle = css(heat(x / (canvas.width - 1)));
        context.fillRect(x, 0, 1, canvas.height);
      }
    }
  }
}

/** The outline of a latent's cell. */
function paintCell(context: CanvasRenderingContext2D, cell: Box, pixel: number, isHeld: boolean): void {
  for (const [colour, width] of [["#000", 4], [isHeld ? css(REGION) : "#fff", 2]] as const) {
    [context.strokeStyle, context.lineWidth] = [colour, width * pixel];
    context.strokeRect(cell.x, cell.y, cell.width, cell.height);
  }
}

function anySeed(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0] ?? 0;
}

function isPressed(button: HTMLButtonElement): boolean {
  return button.getAttribute("aria-pressed") === "true";
}

/** The token of the address, which is kept for this tab and taken out of the address. */
function takeToken(): string {
  const address = new URL(location.href);
  const token = address.searchParams.get("token") ?? sessionStorage.getItem("hpunet-token") ?? "";
  sessionStorage.setItem("hpunet-token", token);
  address.searchParams.delete("token");
  history.replaceState(null, "", address);
  return token;
}

const ui = findControls();
new App(new Api(takeToken()), ui).start().catch((error: unknown) => {
  ui.title.textContent = error instanceof Error ? error.message : String(error);
  if (error instanceof Lost) ui.hint.textContent = "Start hpunet view again and reload.";
  if (error instanceof Refused && error.status === 403) {
    ui.hint.textContent = "Open the address that hpunet view printed; links work in its tab.";
  }
});
