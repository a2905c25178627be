import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Appends entries to a ledger with the settings that Penstock uses. Arguments: service URI, bytes, window, seconds. */
public final class LedgerAppends {
    public static void main(String[] arguments) throws Exception {
        int length = Integer.parseInt(arguments[1]);
        int window = Integer.parseInt(arguments[2]);
        double seconds = Double.parseDouble(arguments[3]);
        ClientConfiguration settings = new ClientConfiguration();
        settings.setMetadataServiceUri(arguments[0]);
        settings.setThrottleValue(0);
        settings.setEnsemblePlacementPolicy(org.apache.bookkeeper.client.DefaultEnsemblePlacementPolicy.class);
        settings.setNumIOThreads(1).setNumWorkerThreads(1);
        settings.setUseV2WireProtocol(true);
        settings.setDelayEnsembleChange(true);
        try (BookKeeper client = BookKeeper.newBuilder(settings).build()) {
            WriteHandle ledger = client.newCreateLedgerOp().withEnsembleSize(3).withWriteQuorumSize(3)
                .withAckQuorumSize(2).withDigestType(DigestType.CRC32C).withPassword(new byte[0]).execute().get();
            append(ledger, length, window, 1.0);
            System.out.println("RATE " + append(ledger, length, window, seconds));
            System.out.println("ALONE " + alone(ledger, length));
            ledger.close();
            client.newDeleteLedgerOp().withLedgerId(ledger.getId()).execute().get();
        }
        System.exit(0);
    }

    /** Returns the median of appends of which each waits for the one before, in milliseconds. */
    private static double alone(WriteHandle ledger, int length) throws Exception {
        long[] taken = new long[200];
        for (int index = 0; index < taken.length; index++) {
            long began = System.nanoTime();
            ledger.append(new byte[length]);
            taken[index] = System.nanoTime() - began;
        }
        Arrays.sort(taken);
        return taken[taken.length / 2] / 1e6;
    }

    private static double append(WriteHandle ledger, int length, int window, double seconds) throws Exception {
        byte[] entry = new byte[length];
        Semaphore free = new Semaphore(window);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        long began = System.nanoTime();
        long count = 0;
        while (System.nanoTime() - began < seconds * 1e9 && failure.get() == null) {
            free.acquire();
            CompletableFuture<Long> answer = ledger.appendAsync(entry);
            count++;
            answer.whenComplete((number, error) -> {
                if (error != null) {
                    failure.set(error);
                }
                free.release();
            });
        }
        free.acquire(window);
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        return count / ((System.nanoTime() - began) / 1e9);
    }
}
