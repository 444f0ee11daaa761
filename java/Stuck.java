import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.Map;

/** One call never returns; every other one appends its offset (8 bytes) to a file. Runs until it is killed. */
final class Stuck {
    private final long hang;
    private final FileChannel log;

    private Stuck(long hang, FileChannel log) {
        this.hang = hang;
        this.log = log;
    }

    /** Options: hang (an offset, or -1 for none), log (a path). */
    static void run(Map<String, String> options) throws IOException, InterruptedException {
        Path path = Path.of(options.get("log"));
        FileChannel log =
                FileChannel.open(path, StandardOpenOption.CREATE, StandardOpenOption.WRITE, StandardOpenOption.APPEND);
        Stuck stuck = new Stuck(Long.parseLong(options.get("hang")), log);
        ParallelStreamProcessor<byte[], byte[]> processor = PcRunner.processor(options);
        processor.subscribe(List.of(options.get("topic")));
        processor.poll(context -> stuck.handle(context.offset()));
        Thread.sleep(Long.MAX_VALUE);
    }

    private void handle(long offset) {
        try {
            if (offset == hang) {
                Thread.sleep(Long.MAX_VALUE);
            }
            ByteBuffer bytes = ByteBuffer.allocate(Long.BYTES).putLong(0, offset);
            synchronized (log) {
                log.write(bytes);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
