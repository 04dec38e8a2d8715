// Three planes of a volume with a crosshair that links them: moving it, stepping through slices, painting.

import type { OpenCase } from "./case";
import { distinct, type Colour } from "./colours";
import type { Controls } from "./controls";
import { Newest } from "./latents";
import { canvasOf, heated, windowed, type Point, type Size } from "./pixels";
import type { Labels } from "./runs";
import { Camera, View } from "./view";
import { ACROSS, aspectOf, countOf, inside, PLANES, pointOn, sizeOf, voxelAt, type MapKind, type Plane, type Voxel } from "./volume";
import type { Window } from "./windows";

export interface Host {
  readonly open: OpenCase | null;
  readonly window: Window;
  /** The map over the image: "none", "mean" or "std". */
  readonly heat: string;
  /** The sample that is shown instead of hypotheses and mask. */
  readonly flipped: number | null;
  readonly isHidden: boolean;
  readonly showsGraders: boolean;
  /** The slice is left for another one. */
  leaveSlice: () => void;
  /** The planes show something else. */
  planesShown: (isNewSlice: boolean) => void;
  paintLabels: (context: CanvasRenderingContext2D, labels: Labels, pixel: number, size: Size) => void;
  paintOutline: (context: CanvasRenderingContext2D, labels: Labels, width: number, colour: (label: number) => Colour, dashed: boolean, size: Size) => void;
  run: (work: Promise<unknown>) => void;
}

interface Shown {
  image: HTMLCanvasElement | null;
  heat: HTMLCanvasElement | null;
  gradings: (Uint8Array | null)[];
}

const UPRIGHT = ["coronal", "sagittal"] as const;
const NOTCH = 50; // CSS pixels that the wheel turns for a slice
const ZOOM_SPEED = 400;

export class Planes {
  voxel: Voxel = { z: 0, y: 0, x: 0 };
  active: Plane = "axial";
  /** Where the crosshair will be when everything has come. */
  private target: Voxel = this.voxel;
  private readonly shown: Record<Plane, Shown> = { axial: nothing(), coronal: nothing(), sagittal: nothing() };
  private readonly painted = new Map<Plane, { key: string; canvas: HTMLCanvasElement }>();
  private readonly cameras: Record<Plane, Camera>;
  private readonly views: Partial<Record<Plane, View>> = {};
  private turned = 0;
  private readonly newest = new Newest<Voxel>((voxel) => this.load(voxel));

  constructor(
    private readonly host: Host,
    private readonly ui: Controls,
    axial: Camera,
  ) {
    this.cameras = { axial, coronal: new Camera(), sagittal: new Camera() };
    for (const plane of UPRIGHT) {
      const view = new View(ui[plane], this.cameras[plane], (context, pixel) => {
        this.paint(plane, context, pixel);
      });
      this.views[plane] = view;
      this.connect(plane, view);
      this.slider(plane).addEventListener("input", () => {
        this.active = plane;
        this.want({ ...this.target, [ACROSS[plane]]: Number(this.slider(plane).value) });
      });
    }
    ui.main.addEventListener("focus", () => {
      this.activate("axial");
    });
  }

  get isOn(): boolean {
    return Boolean(this.host.open?.volume);
  }

  // ---------------------------------------------------------------- what is shown

  /** Show the planes of the case that was opened, with the crosshair in the middle of a slice, or nothing of them. */
  begin(): void {
    const { host, ui } = this;
    const { open } = host;
    ui.planeViews.hidden = !this.isOn;
    ui.main.setAttribute("aria-label", this.isOn ? "Axial plane" : "Image");
    this.cameras.axial.aspect = open && this.isOn ? aspectOf("axial", open.item) : 1;
    this.painted.clear();
    for (const plane of PLANES) this.shown[plane] = nothing();
    if (!open || !this.isOn) return;
    const { item } = open;
    this.target = this.voxel = { z: open.slice, y: item.height >> 1, x: item.width >> 1 };
    this.activate("axial");
    for (const plane of UPRIGHT) {
      this.slider(plane).max = String(countOf(plane, item) - 1);
      this.cameras[plane].aspect = aspectOf(plane, item);
    }
    this.fit();
  }

  /** Show all of the upright planes. */
  fit(): void {
    const { open } = this.host;
    for (const plane of UPRIGHT) {
      if (open) this.cameras[plane].fit(sizeOf(plane, open.item), this.views[plane]?.size ?? open.size);
    }
    this.draw();
  }

  zoomBy(factor: number): void {
    for (const plane of UPRIGHT) this.cameras[plane].zoomBy(factor);
    this.draw();
  }

  /** Load and show again what is at the crosshair. */
  refresh(): Promise<void> {
    return this.newest.want(this.target);
  }

  draw(): void {
    for (const plane of UPRIGHT) this.views[plane]?.draw();
  }

  picture(plane: Plane): Shown {
    return this.shown[plane];
  }

  /** Everything that the three planes need comes before any of it is shown. */
  private async load(voxel: Voxel): Promise<void> {
    const { host } = this;
    const { open } = host;
    const volume = open?.volume;
    if (!volume) return;
    const { heat, flipped, window: shades } = host;
    const kinds: MapKind[] = ["hypotheses", ...(heat === "mean" || heat === "std" ? [heat] as const : []), ...(flipped === null ? [] : ["samples"] as const)];
    const graders = host.showsGraders ? open.item.graders : [];
    const all = await Promise.all(PLANES.map(async (plane) => {
      const index = voxel[ACROSS[plane]];
      const [values, gradings] = await Promise.all([
        volume.image(plane, index),
        Promise.all(graders.map((_, grader) => open.grading(grader, plane, index))),
        ...kinds.map((kind) => volume.load(kind, plane, index)),
      ]);
      return { plane, index, values, gradings };
    }));
    if (host.open?.volume !== volume) return;
    const isNewSlice = voxel.z !== open.slice || this.shown.axial.image === null;
    if (voxel.z !== open.slice) host.leaveSlice();
    this.voxel = voxel;
    for (const { plane, index, values, gradings } of all) {
      const size = sizeOf(plane, open.item);
      const map = heat === "mean" || heat === "std" ? volume.known(heat, plane, index)?.[0] : null;
      this.shown[plane] = {
        image: this.canvas(plane, `${index}/${shades.join()}`, () => canvasOf(windowed(values, open.item.channels, shades), size)),
        heat: map instanceof Uint8Array ? canvasOf(heated(map, 0.7), size) : null,
        gradings,
      };
    }
    this.showPlace();
    host.planesShown(isNewSlice);
    this.draw();
  }

  private canvas(plane: Plane, key: string, make: () => HTMLCanvasElement): HTMLCanvasElement {
    const known = this.painted.get(plane);
    if (known?.key === key) return known.canvas;
    const canvas = make();
    this.painted.set(plane, { key, canvas });
    return canvas;
  }

  private showPlace(): void {
    const { host, ui } = this;
    const { open } = host;
    if (!open) return;
    const { z, y, x } = this.voxel;
    ui.place.textContent = `Crosshair at slice ${z + 1}, row ${y + 1}, column ${x + 1}`;
    for (const plane of UPRIGHT) {
      const index = this.voxel[ACROSS[plane]];
      this.slider(plane).value = String(index);
      this.number(plane).textContent = `${index + 1} of ${countOf(plane, open.item)}`;
    }
  }

  // ---------------------------------------------------------------- the crosshair

  /** Move the crosshair; if it moves again before all has come, only the last place is shown. */
  want(voxel: Voxel): void {
    const { open } = this.host;
    if (!open?.volume) return;
    this.target = inside(voxel, open.item);
    this.host.run(this.newest.want(this.target));
  }

  /** Go to a slice of the file. */
  toSlice(z: number): void {
    this.want({ ...this.target, z });
  }

  /** The next or an earlier plane. */
  step(by: number, plane: Plane = this.active): void {
    const axis = ACROSS[plane];
    this.want({ ...this.target, [axis]: this.target[axis] + by });
  }

  /** Move the crosshair on the plane in use, as it is seen. */
  move(dx: number, dy: number): void {
    const { x, y } = pointOn(this.active, this.target);
    const up = this.cameras[this.active].aspect < 0 ? -1 : 1;
    this.want(voxelAt(this.active, { x: x + dx, y: y + up * dy }, this.target));
  }

  pointAt(plane: Plane, point: Point): void {
    this.activate(plane);
    this.want(voxelAt(plane, point, this.target));
  }

  /** Turn the wheel over a plane. */
  turn(plane: Plane, { deltaX, deltaY }: WheelEvent): void {
    this.turned += deltaX + deltaY;
    if (Math.abs(this.turned) < NOTCH) return;
    this.step(this.turned < 0 ? 1 : -1, plane);
    this.turned = 0;
  }

  private activate(plane: Plane): void {
    this.active = plane;
    for (const each of PLANES) this.canvasOf(each).closest("figure")?.classList.toggle("active", this.isOn && each === plane);
  }

  private connect(plane: Plane, view: View): void {
    const { canvas } = view;
    let last: { x: number; y: number } | null = null;
    canvas.addEventListener("focus", () => {
      this.activate(plane);
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.shiftKey || event.ctrlKey) this.cameras[plane].zoomBy(Math.exp(-(event.deltaY + event.deltaX) / ZOOM_SPEED), view.at(event));
      else this.turn(plane, event);
      this.draw();
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      last = { x: event.clientX, y: event.clientY };
      if (event.button === 0) this.pointAt(plane, view.at(event));
    });
    canvas.addEventListener("pointermove", (event) => {
      if (event.buttons === 1) this.pointAt(plane, view.at(event));
      else if (event.buttons === 4 && last) this.cameras[plane].moveBy(event.clientX - last.x, event.clientY - last.y);
      last = { x: event.clientX, y: event.clientY };
      if (event.buttons === 4) this.draw();
    });
  }

  private canvasOf(plane: Plane): HTMLCanvasElement {
    return plane === "axial" ? this.ui.main : this.ui[plane];
  }

  private slider(plane: (typeof UPRIGHT)[number]): HTMLInputElement {
    return plane === "coronal" ? this.ui.coronalSlice : this.ui.sagittalSlice;
  }

  private number(plane: (typeof UPRIGHT)[number]): HTMLElement {
    return plane === "coronal" ? this.ui.coronalNumber : this.ui.sagittalNumber;
  }

  // ---------------------------------------------------------------- painting

  private paint(plane: Plane, context: CanvasRenderingContext2D, pixel: number): void {
    const { host, voxel } = this;
    const { open } = host;
    const volume = open?.volume;
    if (!volume) return;
    const { image, heat, gradings } = this.shown[plane];
    const [size, index] = [sizeOf(plane, open.item), voxel[ACROSS[plane]]];
    if (image) context.drawImage(image, 0, 0);
    if (heat) context.drawImage(heat, 0, 0);
    if (!host.isHidden) {
      gradings.forEach((map, i) => {
        if (map) host.paintOutline(context, map, 1.5 * pixel, () => distinct(i + 1), true, size);
      });
      const sample = host.flipped === null ? null : volume.known("samples", plane, index)?.[host.flipped];
      if (sample) host.paintLabels(context, sample, pixel, size);
      else if (open.history.isTouched) host.paintLabels(context, open.history.plane(plane, index, open.item), pixel, size);
      else if (!heat) {
        volume.known("hypotheses", plane, index)?.forEach((map, i) => {
          host.paintOutline(context, map, 1.5 * pixel, () => distinct(i), false, size);
        });
      }
    }
    this.paintCrosshair(plane, context, pixel, size);
  }

  /** Lines where the other two planes are. */
  paintCrosshair(plane: Plane, context: CanvasRenderingContext2D, pixel: number, { height, width }: Size): void {
    const { x, y } = pointOn(plane, this.voxel);
    const up = pixel / Math.abs(this.cameras[plane].aspect);
    const [across, down] = [8 * pixel, 8 * up];
    for (const [colour, thick] of [["rgb(0 0 0 / 0.6)", 3], ["#8fd0ff", 1]] as const) {
      context.fillStyle = colour;
      for (const [from, to] of [[0, x - across], [x + across, width]] as const) {
        context.fillRect(from, y - (thick * up) / 2, Math.max(to - from, 0), thick * up);
      }
      for (const [from, to] of [[0, y - down], [y + down, height]] as const) {
        context.fillRect(x - (thick * pixel) / 2, from, thick * pixel, Math.max(to - from, 0));
      }
    }
  }
}

function nothing(): Shown {
  return { image: null, heat: null, gradings: [] };
}
