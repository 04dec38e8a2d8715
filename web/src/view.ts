// One canvas that shows an image with overlays, zoomed and moved; several share one `Camera`.

import type { Point, Size } from "./pixels";

/** Where an image lies on canvases: `zoom` CSS pixels per image pixel, the image's pixel in the middle. */
export class Camera {
  zoom = 1;
  /** The height of a pixel by its width; negative if rows go up. */
  aspect = 1;
  centre: Point = { x: 0, y: 0 };
  private fitted: Size | null = null;

  /** Show the whole image, also after canvases change their size, until someone zooms or moves. */
  fit(image: Size, canvas: Size): void {
    this.fitted = image;
    this.fill({ x: 0, y: 0, ...image }, canvas);
  }

  /** Zoom to a part of the image. */
  show(part: Point & Size, canvas: Size): void {
    this.fitted = null;
    this.fill(part, canvas);
  }

  private fill({ x, y, width, height }: Point & Size, canvas: Size): void {
    this.zoom = Math.max(0.02, Math.min(canvas.width / width, canvas.height / (height * Math.abs(this.aspect))) * 0.97);
    this.centre = { x: x + width / 2, y: y + height / 2 };
  }

  resized(canvas: Size): void {
    if (this.fitted && canvas.width > 0) this.fit(this.fitted, canvas);
  }

  /** Zoom so that an image point stays where it is. */
  zoomBy(factor: number, around: Point = this.centre): void {
    this.fitted = null;
    const zoom = Math.min(Math.max(this.zoom * factor, 0.02), 64);
    const ratio = this.zoom / zoom;
    this.centre = {
      x: around.x + (this.centre.x - around.x) * ratio,
      y: around.y + (this.centre.y - around.y) * ratio,
    };
    this.zoom = zoom;
  }

  moveBy(dx: number, dy: number): void {
    this.fitted = null;
    this.centre = { x: this.centre.x - dx / this.zoom, y: this.centre.y - dy / (this.zoom * this.aspect) };
  }

  /** From CSS pixels of a canvas to the image's. */
  toImage(x: number, y: number, canvas: Size): Point {
    return {
      x: this.centre.x + (x - canvas.width / 2) / this.zoom,
      y: this.centre.y + (y - canvas.height / 2) / (this.zoom * this.aspect),
    };
  }
}

export class View {
  private scheduled = false;

  /** `paint` draws in image coordinates; a line of `1 / zoom` is one CSS pixel wide. */
  constructor(
    readonly canvas: HTMLCanvasElement,
    private readonly camera: Camera,
    private readonly paint: (context: CanvasRenderingContext2D, pixel: number) => void,
  ) {
    new ResizeObserver(() => {
      camera.resized(this.size);
      this.draw();
    }).observe(canvas);
  }

  get size(): Size {
    return { height: this.canvas.clientHeight, width: this.canvas.clientWidth };
  }

  /** Draw with the next frame. */
  draw(): void {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => {
      this.scheduled = false;
      this.drawNow();
    });
  }

  at(event: MouseEvent): Point {
    const box = this.canvas.getBoundingClientRect();
    return this.camera.toImage(event.clientX - box.left, event.clientY - box.top, this.size);
  }

  private drawNow(): void {
    const context = this.canvas.getContext("2d");
    const { height, width } = this.size;
    if (!context || width === 0) return;
    const ratio = window.devicePixelRatio || 1;
    const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== across || this.canvas.height !== down) {
      [this.canvas.width, this.canvas.height] = [across, down];
    }
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, across, down);
    const scale = this.camera.zoom * ratio;
    const { x, y } = this.camera.centre;
    const upright = scale * this.camera.aspect;
    context.setTransform(scale, 0, 0, upright, across / 2 - x * scale, down / 2 - y * upright);
    context.imageSmoothingEnabled = scale < 1;
    this.paint(context, 1 / this.camera.zoom);
  }
}
